"""Early recognition and ranking metrics against published values, brute force over orders, and RDKit."""

from itertools import permutations

import numpy as np
import pytest
from numpy.typing import NDArray
from sklearn.metrics import average_precision_score, roc_auc_score

from finetune.metrics.enrichment import enrichment, top_recall

Floats, Flags = NDArray[np.float64], NDArray[np.bool_]


def ranked(size: int, *ranks: int) -> tuple[Flags, Floats]:
    """Positives at ranks from 1 on, and scores without ties."""
    labels = np.isin(np.arange(1, size + 1), ranks)
    return labels, np.arange(size, 0, -1.0)


TIED = (np.array([1, 0, 1, 0, 0, 0, 1, 0, 0, 0, 0, 0]) == 1, np.array([5.0, 5, 5, 4, 3, 3, 3, 2, 2, 1, 1, 1]))
ALL_TIED = (np.arange(10) < 3, np.zeros(10))
T1, T2, T3 = ranked(10, 1, 2, 5), ranked(10, 1, 2, 3), ranked(10, 8, 9, 10)
T4 = ranked(200, 1, 3, 4, 20, 77, 150)
T5 = ranked(1000, 1, 2, 5, 9, 50, 101, 500, 730, 900, 1000)
# AUROC, AP, and enrichment factors by fraction, computed by an independent implementation.
REFERENCE = {
    "two of the first": (T1, 0.9047619048, 0.8666666667, {0.01: 10 / 3, 0.5: 2}),
    "perfect": (T2, 1.0, 1.0, {0.1: 10 / 3}),
    "worst": (T3, 0.0, 0.2157407407, {0.1: 0}),
    "six of 200": (T4, 0.7989690722, 0.4536002886, {0.01: 50 / 3, 0.05: 10, 0.1: 20 / 3}),
    "ten of 1,000": (T5, 0.6724242424, 0.3248809289, {0.01: 40, 0.05: 10, 0.1: 5}),
    "ties": (TIED, 0.8518518519, 0.5873015873, {0.1: 8 / 3, 0.5: 16 / 9}),
    "all tied": (ALL_TIED, 0.5, 0.3, {0.1: 1}),
}


@pytest.mark.parametrize("case", REFERENCE)
def test_reference_table(case: str) -> None:
    (labels, scores), of_auroc, of_ap, factors = REFERENCE[case]
    assert roc_auc_score(labels, scores) == pytest.approx(of_auroc, abs=1e-9)
    assert average_precision_score(labels, scores) == pytest.approx(of_ap, abs=1e-9)
    for fraction, factor in factors.items():
        assert enrichment(labels, scores, fraction)[0] == pytest.approx(factor, abs=1e-9)


def test_top_recall_is_that_of_proteingym() -> None:
    truth = np.arange(50.0)
    prediction = 17 * truth % 50 + 0.3 * truth
    assert top_recall(truth, prediction) == pytest.approx(0.2, abs=1e-9)
    rng = np.random.Generator(np.random.Philox(1))
    for size in range(10, 40):
        truth, prediction = rng.normal(size=(2, size))
        top = truth >= np.percentile(truth, 90), prediction >= np.percentile(prediction, 90)
        assert top_recall(truth, prediction) == pytest.approx((top[0] & top[1]).sum() / top[0].sum(), abs=1e-12)


def test_ties_are_the_mean_over_their_orders() -> None:
    labels, scores = np.array([1, 0, 0, 1, 0, 1]) == 1, np.array([2.0, 2, 2, 1, 1, 1])
    untied = np.arange(6, 0, -1.0)
    orders = [[*first, *second] for first in permutations(range(3)) for second in permutations(range(3, 6))]
    mean = np.mean([enrichment(labels[order], untied, 0.3)[0] for order in orders])
    assert enrichment(labels, scores, 0.3)[0] == pytest.approx(mean, abs=1e-12)


def test_no_order_of_a_file_changes_a_value() -> None:
    assert enrichment(TIED[0][::-1], TIED[1][::-1], 0.3) == enrichment(*TIED, 0.3)


def test_first_items_are_counted_without_rounding_errors() -> None:
    counts = [enrichment(*ranked(100, 1), fraction)[2] for fraction in (0.07, 0.01, 0.011, 1.0)]
    assert counts == [7, 1, 2, 100]
    # Fractions that take as many items have equal factors, together and alone.
    assert [enrichment(*T1, fraction)[0] for fraction in (0.01, 0.05, 0.1)] == pytest.approx([10 / 3] * 3)
    assert enrichment(*ranked(60, 3), 0.01) == (0.0, 60.0, 1)
    assert enrichment(*ranked(1000, *range(1, 51)), 0.01) == pytest.approx((20.0, 20.0, 10))
    assert enrichment(*T1, 1.0)[0] == pytest.approx(1.0)
