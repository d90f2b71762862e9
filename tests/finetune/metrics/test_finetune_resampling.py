"""Metrics of weights against rows that are repeated, concordance against all pairs, intervals against known ones."""

from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats
from sklearn.metrics import roc_auc_score

from finetune.labels.labels import ABOVE, BELOW, EXACT
from finetune.metrics import weighted
from finetune.metrics.resampling import Jackknife, difference_interval, jackknife, score_interval
from finetune.metrics.weighted import Statistic

Floats = NDArray[np.float64]
RNG = np.random.Generator(np.random.Philox(3))
SIZE = 60
TRUTH = np.round(RNG.normal(size=SIZE), 1)
PREDICTION = np.round(TRUTH + RNG.normal(size=SIZE), 1)  # both with ties
LEVELS = np.digitize(TRUTH, (-0.5, 0.5)).astype(np.float64)
PROBABILITIES = RNG.dirichlet((1, 1, 1), SIZE).round(2)


def weights(count: int) -> Floats:
    """How often each row stands in each of `count` resamples."""
    return RNG.multinomial(SIZE, np.full(SIZE, 1 / SIZE), count).T.astype(np.float64)


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
    drawn = weights(5)
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
    drawn = weights(3)
    right, total = pairs(TRUTH, censoring, PREDICTION, np.ones(SIZE))
    of_weights = [np.divide(*pairs(TRUTH, censoring, PREDICTION, column)) for column in drawn.T]
    for cells in (1 << 21, 7 * SIZE):  # in one block and in several
        monkeypatch.setattr(weighted, "_BLOCK_CELLS", cells)
        assert weighted.concordance(TRUTH, censoring, PREDICTION) == (pytest.approx(right / total, abs=1e-12), total)
        assert weighted.concordance_statistic(TRUTH, censoring, PREDICTION)(drawn) == pytest.approx(
            of_weights, abs=1e-12
        )


def mean_of(values: Floats) -> Statistic:
    return lambda w: np.asarray((w * values[:, None]).sum(0) / w.sum(0))


def test_the_error_of_a_mean_is_that_of_textbooks() -> None:
    values = RNG.normal(size=150)
    found = jackknife(mean_of(values), np.arange(150))
    assert found == pytest.approx((values.mean(), values.std(ddof=1) / np.sqrt(150), 149, 150), abs=1e-12)


def test_rows_of_a_cluster_are_left_out_together() -> None:
    """Each of 100 values stands 16 times: the error is that of 100 rows, about four times that of 1,600."""
    values = np.repeat(RNG.normal(size=100), 16)
    of_clusters = jackknife(mean_of(values), np.repeat(np.arange(100), 16))
    assert of_clusters.error == pytest.approx(values[::16].std(ddof=1) / 10, abs=1e-12)
    assert of_clusters.error / jackknife(mean_of(values), np.arange(1600)).error == pytest.approx(4, rel=0.15)


def test_many_clusters_are_left_out_in_at_most_200_blocks_whatever_their_order() -> None:
    values, widths = RNG.normal(size=5000), list[int]()

    def statistic(w: Floats) -> Floats:
        widths.append(w.shape[1])
        return mean_of(values)(w)

    found = jackknife(statistic, np.arange(5000))
    assert sum(widths) == 201  # and all rows once
    assert found.error == pytest.approx(values.std() / np.sqrt(5000), rel=0.2)
    order = RNG.permutation(5000)
    assert jackknife(mean_of(values[order]), np.arange(5000)[order]).error == pytest.approx(found.error, abs=1e-12)
    widths.clear()
    jackknife(statistic, np.arange(5000), cells_a_row=1000)
    assert sum(widths) == 54  # 2**28 cells


def test_one_cluster_of_most_rows_leaves_few_degrees_of_freedom() -> None:
    clusters = np.concatenate([np.zeros(160, np.int64), np.arange(1, 41)])
    effective = 200**2 / (160**2 + 40)
    assert jackknife(mean_of(RNG.normal(size=200)), clusters).freedom == pytest.approx(2 * effective)


def test_a_score_interval_is_that_of_wilson() -> None:
    """30 of 40 throws: 0.5981 to 0.8581 (Wilson 1927), with the error of the binomial and the normal distribution."""
    found = Jackknife(0.75, np.sqrt(0.75 * 0.25 / 40), 1e9, 40)
    assert score_interval(found, 0.0, np.arange(40)) == pytest.approx((0.5981, 0.8581), abs=1e-4)
    of_correlation = score_interval(Jackknife(0.5, 2 * found.error, 1e9, 40), -1.0, np.arange(40))
    assert of_correlation == pytest.approx((2 * 0.5981 - 1, 2 * 0.8581 - 1), abs=2e-4)
    few = score_interval(found._replace(freedom=2.0), 0.0, np.arange(40))
    by_t = found._replace(error=found.error * stats.t.ppf(0.975, 3) / stats.norm.ppf(0.975))
    assert few == pytest.approx(score_interval(by_t, 0.0, np.arange(40)))
    wider = score_interval(found._replace(error=found.error * np.sqrt(2)), 0.0, np.arange(40))
    assert score_interval(found, 0.0, np.arange(40), factor=2.0) == pytest.approx(wider)


def test_a_perfect_score_of_few_labels_has_an_interval() -> None:
    """Five of each class: 3 * 25 / 11 throws, all heads, which the rule of Wilson bounds by n / (n + 3.84)."""
    yes = np.repeat((0.0, 1.0), 5)
    found = jackknife(weighted.auroc(yes > 0, yes), np.arange(10))
    throws = 3 * 25 / 11
    expected = throws / (throws + 1.959964**2)
    assert score_interval(found, 0.0, np.arange(10), yes) == (pytest.approx(expected), pytest.approx(1.0))
    single = np.arange(10) == 9  # without its only positive there is no AUROC
    found = jackknife(weighted.auroc(single, np.arange(10.0)), np.arange(10))
    assert np.isnan(found.error)
    throws = 3 * 9 / 11
    assert score_interval(found, 0.0, np.arange(10), single.astype(np.float64))[0] == pytest.approx(
        throws / (throws + 1.959964**2)
    )


def test_too_few_clusters_have_no_interval() -> None:
    found = jackknife(weighted.spearman(TRUTH, PREDICTION), np.arange(SIZE) % 2)
    assert np.isnan(score_interval(found, -1.0, np.arange(SIZE) % 2)).all()
    assert np.isnan(difference_interval(found)).all()
    found = jackknife(weighted.spearman(TRUTH, PREDICTION), np.arange(SIZE) % 3)
    assert np.isfinite(score_interval(found, -1.0, np.arange(SIZE) % 3)).all()


def test_an_interval_of_a_difference_is_symmetric_and_never_empty() -> None:
    found = Jackknife(0.1, 0.02, 2.0, 20)  # the t quantile of two degrees of freedom is 4.302653
    assert difference_interval(found) == pytest.approx((0.1 - 0.08605306, 0.1 + 0.08605306))
    assert np.diff(difference_interval(found, 2.0)) == pytest.approx(np.sqrt(2) * np.diff(difference_interval(found)))
    half = 1.959964 / np.sqrt(20)
    assert difference_interval(found._replace(error=0.0)) == pytest.approx((0.1 - half, 0.1 + half))
    assert difference_interval(Jackknife(0.0, 0.0, 2.0, 20)) == (0.0, 0.0)
