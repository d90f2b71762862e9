"""Ranking metrics of many resamples at once: a row that is drawn twice has the weight 2.

In: truth and predictions of the rows, prepared once, and whole weights (n, b) of b resamples. Out: (b,) float64, NaN
where a resample has no value, as where it holds one class. Kept: nothing. With all weights 1 the values are those of
scikit-learn and scipy; equal scores count half. `TaskType.metric` chooses one.

Concordance scores values of which some are known only as a bound (``<v``, ``>v``). Two rows are comparable if the true
value of one is certainly below that of the other: an exact value or an upper bound v against a greater exact value or
lower bound u; where v equals u, one of the two must be a bound. A pair whose predictions are equal counts half (Harrell
et al. 1982, doi:10.1001/jama.1982.03320430047030).
"""

from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from finetune.labels.labels import ABOVE, BELOW, EXACT

Floats = NDArray[np.float64]
Statistic = Callable[[Floats], Floats]
"""Weights (n, b) -> values (b,)."""


class Metric(NamedTuple):
    """A metric of some rows; its best value is 1."""

    name: str
    chance: float
    """Its value for a prediction without information."""
    statistic: Statistic
    cells_a_row: int = 1
    """How many numbers the statistic computes for each row."""


class SortedRows:
    """The rows by rising value, in blocks of equal values."""

    def __init__(self, values: Floats) -> None:
        self.order = np.argsort(values, kind="stable")
        ordered = values[self.order]
        new = np.concatenate([[True], ordered[1:] != ordered[:-1]])[: len(values)]
        self.starts = np.flatnonzero(new)
        self.block = np.empty(len(values), np.int64)
        """(n,) block of each row."""
        self.block[self.order] = np.cumsum(new) - 1

    def sums(self, weights: Floats) -> Floats:
        """(blocks, b) summed weights of each block, from weights (n, b)."""
        return np.add.reduceat(weights[self.order], self.starts, axis=0)


def of_all(statistic: Statistic, rows: int) -> float:
    """The value with each of some rows once."""
    return float(statistic(np.ones((rows, 1)))[0])


def ratio(above: Floats, below: Floats) -> Floats:
    """(b,) quotients, NaN where the divisor is 0."""
    return np.asarray(np.divide(above, below, out=np.full(len(below), np.nan), where=below > 0))


def mean_of_defined(values: Floats) -> Floats:
    """(b,) means of the finite ones among (n, b) values; NaN without any."""
    there = np.isfinite(values)
    return ratio(np.where(there, values, 0.0).sum(0), there.sum(0).astype(np.float64))


def auroc(positive: NDArray[np.bool_], scores: Floats) -> Statistic:
    """Area under the ROC curve: the share of (positive, negative) pairs in which the positive scores higher."""
    order = SortedRows(scores)

    def statistic(weights: Floats) -> Floats:
        of_positive = order.sums(weights * positive[:, None])
        of_negative = order.sums(weights) - of_positive
        below = np.cumsum(of_negative, 0) - of_negative / 2
        pairs = of_positive.sum(0) * of_negative.sum(0)
        return ratio((of_positive * below).sum(0), pairs)

    return statistic


def macro_auroc(truth: Floats, probabilities: Floats, classes: NDArray[np.int64]) -> Statistic:
    """Mean over `classes` of the AUROC of each class against all others; a resample leaves out those it lacks."""
    each = [auroc(truth == index, probabilities[:, index]) for index in classes.tolist()]

    def statistic(weights: Floats) -> Floats:
        return mean_of_defined(np.stack([one(weights) for one in each]))

    return statistic


def spearman(truth: Floats, prediction: Floats) -> Statistic:
    """Pearson correlation of mid-ranks; 0 where all predictions of a resample are equal."""
    orders = SortedRows(truth), SortedRows(prediction)

    def statistic(weights: Floats) -> Floats:
        total = weights.sum(0)
        ranks, spreads = [], []
        for order in orders:
            sums = order.sums(weights)
            middle = np.cumsum(sums, 0) - sums / 2 - total / 2
            spreads.append((sums * middle**2).sum(0))
            ranks.append(middle[order.block])
        covariance = (weights * ranks[0] * ranks[1]).sum(0)
        return _correlation(covariance, spreads[0], spreads[1])

    return statistic


def kendall(truth: Floats, prediction: Floats) -> Statistic:
    """Kendall's tau-b of truth with few distinct values; 0 where all predictions of a resample are equal."""
    of_truth, of_prediction = SortedRows(truth), SortedRows(prediction)
    levels = [truth == level for level in np.unique(truth)]

    def statistic(weights: Floats) -> Floats:
        total = weights.sum(0)
        balance, lower = np.zeros_like(total), np.zeros((len(of_prediction.starts), len(total)))
        for level in levels:  # pairs with a row of a lower level: below it in the prediction minus above it
            mine = of_prediction.sums(weights * level[:, None])
            below = np.cumsum(lower, 0) - lower
            above = lower.sum(0) - below - lower
            balance += (mine * (below - above)).sum(0)
            lower += mine
        pairs = total * (total - 1) / 2
        tied = [(s * (s - 1) / 2).sum(0) for s in (order.sums(weights) for order in (of_truth, of_prediction))]
        return _correlation(balance, pairs - tied[0], pairs - tied[1])

    return statistic


def _correlation(covariance: Floats, of_truth: Floats, of_prediction: Floats) -> Floats:
    """NaN where truth does not vary; 0 where the prediction alone does not, as it ranks nothing."""
    product = np.sqrt(of_truth * of_prediction)
    value = np.divide(covariance, product, out=np.zeros(len(product)), where=product > 0)
    return np.where(of_truth > 0, value, np.nan)


_BLOCK_CELLS = 1 << 21


def concordance(truth: Floats, censoring: NDArray[np.int8], prediction: Floats) -> tuple[float, int]:
    """The share of comparable pairs that the prediction orders rightly, and the number of comparable pairs.

    Compares blocks of rows with all others: 10,000 rows take about a second, and 100 MB at most.

    Returns:
        The share is NaN where no pair is comparable.
    """
    right, pairs = 0.0, 0
    for _, comparable, score in _blocks(truth, censoring, prediction):
        right += float(score.sum(dtype=np.float64))
        pairs += int(comparable.sum())
    return (right / pairs if pairs else np.nan), pairs


def concordance_statistic(truth: Floats, censoring: NDArray[np.int8], prediction: Floats) -> Statistic:
    """The same of resamples, from weights (n, b); the work grows with n² b."""

    def of(weights: Floats) -> Floats:
        right, pairs = np.zeros(weights.shape[1]), np.zeros(weights.shape[1])
        single = weights.astype(np.float32)  # whole numbers below 2**24, and halves of them, stay exact
        for rows, comparable, score in _blocks(truth, censoring, prediction):
            right += (weights[rows] * (score @ single)).sum(0)
            pairs += (weights[rows] * (comparable.astype(np.float32) @ single)).sum(0)
        return ratio(right, pairs)

    return of


def _blocks(
    truth: Floats, censoring: NDArray[np.int8], prediction: Floats
) -> Iterator[tuple[NDArray[np.int64], NDArray[np.bool_], NDArray[np.float32]]]:
    """Rows that may be the lower of a pair; for each and every row, comparable or not, and 1, 0.5 or 0 if it is."""
    lower = np.flatnonzero(censoring != ABOVE)
    size = max(1, _BLOCK_CELLS // max(1, len(truth)))
    bound = censoring != EXACT
    for start in range(0, len(lower), size):
        rows = lower[start : start + size]
        mine = truth[rows, None]
        comparable = (mine < truth) | ((mine == truth) & (bound[rows, None] | bound))
        comparable &= censoring != BELOW
        ours = prediction[rows, None]
        score = (ours < prediction).astype(np.float32) + np.float32(0.5) * (ours == prediction)
        yield rows, comparable, score * comparable
