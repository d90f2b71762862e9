"""Concordance of predictions with values of which some are known as a bound alone (``<v``, ``>v``).

In: truth, censoring, predictions. Out: the share of comparable pairs in the right order; exact. Kept: nothing.

Two rows are comparable if the true value of one is certainly below that of the other: an exact value or an upper bound
v against a greater exact value or lower bound u; where v equals u, one of the two must be a bound. A pair whose
predictions are equal counts half (Harrell et al. 1982, doi:10.1001/jama.1982.03320430047030).
"""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from finetune.labels.labels import ABOVE, BELOW, EXACT
from finetune.metrics.weighted import Floats, Statistic, ratio

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


def statistic(truth: Floats, censoring: NDArray[np.int8], prediction: Floats) -> Statistic:
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
