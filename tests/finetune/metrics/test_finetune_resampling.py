"""Metrics of resamples against rows that are repeated, concordance against all pairs, intervals against known ones."""

from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats
from sklearn.metrics import roc_auc_score

from finetune.labels.labels import ABOVE, BELOW, EXACT
from finetune.metrics import concordance, weighted
from finetune.metrics.resampling import interval, weights
from finetune.metrics.weighted import Statistic

Floats = NDArray[np.float64]
RNG = np.random.Generator(np.random.Philox(3))
SIZE = 60
TRUTH = np.round(RNG.normal(size=SIZE), 1)
PREDICTION = np.round(TRUTH + RNG.normal(size=SIZE), 1)  # both with ties
LEVELS = np.digitize(TRUTH, (-0.5, 0.5)).astype(np.float64)
PROBABILITIES = RNG.dirichlet((1, 1, 1), SIZE).round(2)


def macro(rows: NDArray[np.int64]) -> float:
    truth = LEVELS[rows]
    return float(np.mean([roc_auc_score(truth == label, PROBABILITIES[rows, label]) for label in range(3)]))


CASES: dict[str, tuple[Statistic, Callable[[NDArray[np.int64]], float]]] = {
    "auroc": (weighted.auroc(LEVELS > 0, PREDICTION), lambda rows: roc_auc_score(LEVELS[rows] > 0, PREDICTION[rows])),
    "macro auroc": (weighted.macro_auroc(LEVELS, PROBABILITIES, np.arange(3)), macro),
    "spearman": (
        weighted.spearman(TRUTH, PREDICTION),
        lambda rows: stats.spearmanr(TRUTH[rows], PREDICTION[rows]).statistic,
    ),
    "kendall": (
        weighted.kendall(LEVELS, PREDICTION),
        lambda rows: stats.kendalltau(LEVELS[rows], PREDICTION[rows]).statistic,
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_a_weight_is_a_repeated_row(case: str) -> None:
    statistic, of_rows = CASES[case]
    drawn = weights(SIZE, np.arange(5))
    drawn[:, 0] = 1
    expected = [of_rows(np.repeat(np.arange(SIZE), column.astype(np.int64))) for column in drawn.T]
    assert statistic(drawn) == pytest.approx(expected, abs=1e-12)


def test_a_resample_of_one_class_has_no_value_and_a_constant_has_chance() -> None:
    one_class = np.where(LEVELS > 0, 1.0, 0.0)[:, None]
    assert np.isnan(weighted.auroc(LEVELS > 0, PREDICTION)(one_class)).all()
    assert np.isnan(weighted.spearman(LEVELS, PREDICTION)((LEVELS == 1)[:, None] * 1.0)).all()
    constant = np.zeros(SIZE)
    assert weighted.spearman(TRUTH, constant)(np.ones((SIZE, 1))) == [0.0]
    assert weighted.kendall(LEVELS, constant)(np.ones((SIZE, 1))) == [0.0]
    assert weighted.auroc(LEVELS > 0, constant)(np.ones((SIZE, 1))) == [0.5]


def pairs(truth: Floats, censoring: NDArray[np.int8], prediction: Floats, weight: Floats) -> tuple[float, float]:
    """Right and comparable pairs, each pair by itself: intervals of the true values that do not overlap."""
    right = total = 0.0
    for i in range(len(truth)):
        for j in range(len(truth)):
            if censoring[i] == ABOVE or censoring[j] == BELOW:
                continue
            strict = censoring[i] == EXACT and censoring[j] == EXACT
            if truth[i] < truth[j] or (truth[i] == truth[j] and not strict):
                total += weight[i] * weight[j]
                right += weight[i] * weight[j] * (1.0, 0.5, 0.0)[int(np.sign(prediction[i] - prediction[j])) + 1]
    return right, total


def test_concordance_is_that_of_all_pairs(monkeypatch: pytest.MonkeyPatch) -> None:
    censoring = RNG.choice([BELOW, EXACT, ABOVE], SIZE).astype(np.int8)
    drawn = weights(SIZE, np.arange(3))
    right, total = pairs(TRUTH, censoring, PREDICTION, np.ones(SIZE))
    of_weights = [np.divide(*pairs(TRUTH, censoring, PREDICTION, column)) for column in drawn.T]
    for cells in (1 << 21, 7 * SIZE):  # in one block and in several
        monkeypatch.setattr(concordance, "_BLOCK_CELLS", cells)
        assert concordance.concordance(TRUTH, censoring, PREDICTION) == (pytest.approx(right / total, abs=1e-12), total)
        assert concordance.statistic(TRUTH, censoring, PREDICTION)(drawn) == pytest.approx(of_weights, abs=1e-12)


def test_concordance_by_hand() -> None:
    """<1, 2, >3, <2: of six pairs five are comparable; both upper bounds are below 2 and 3."""
    truth, censoring = np.array([1.0, 2, 3, 2]), np.array([BELOW, EXACT, ABOVE, BELOW], np.int8)
    assert concordance.concordance(truth, censoring, np.array([0.0, 1, 2, 0.5])) == (1.0, 5)
    assert concordance.concordance(truth, censoring, np.array([0.0, 1, 2, 1])) == (0.9, 5)
    assert concordance.concordance(truth, np.full(4, BELOW, np.int8), truth)[1] == 0


def test_uncensored_concordance_is_kendall() -> None:
    """Without ties tau is twice the concordance, minus 1."""
    truth, prediction = RNG.normal(size=(2, 30))
    value, count = concordance.concordance(truth, np.zeros(30, np.int8), prediction)
    assert count == 30 * 29 // 2
    assert 2 * value - 1 == pytest.approx(stats.kendalltau(truth, prediction).statistic, abs=1e-12)


def test_draws_depend_on_the_number_of_the_resample_alone() -> None:
    together = weights(20, np.arange(6))
    assert (together.sum(0) == 20).all()
    assert (weights(20, np.array([4])) == together[:, 4:5]).all()
    assert (together[:, 0] != together[:, 1]).any()


def test_interval_of_a_mean() -> None:
    """That of a mean of 2,000 rows is 1.96 standard errors to each side, within a tenth of its width."""
    values = RNG.normal(size=2000)
    low, high = interval(lambda w: (w * values[:, None]).sum(0) / w.sum(0), np.arange(2000))
    error = values.std() / np.sqrt(2000)
    assert (low, high) == pytest.approx((values.mean() - 1.96 * error, values.mean() + 1.96 * error), abs=0.4 * error)


def test_rows_of_a_group_are_drawn_together() -> None:
    """Each of 100 values stands 16 times: as groups the interval is that of 100 rows, four times that of 1,600."""
    values = np.repeat(RNG.normal(size=100), 16)

    def mean(w: Floats) -> Floats:
        return np.asarray((w * values[:, None]).sum(0) / w.sum(0))

    of_groups, of_rows = interval(mean, np.repeat(np.arange(100), 16)), interval(mean, np.arange(1600))
    assert np.diff(of_groups)[0] / np.diff(of_rows)[0] == pytest.approx(4, rel=0.15)
    assert np.isnan(interval(mean, np.zeros(1600, np.int64))).all()
    assert np.isnan(interval(mean, np.arange(1600), resamples=0)).all()
