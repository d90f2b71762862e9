"""Intervals by the cluster jackknife: each cluster of relatives is left out in turn, with all of its rows.

In: a statistic of weights, the cluster of each row. Out: ends of the 95 % interval. Kept: nothing.

Rows of a cluster are relatives, or residues of one protein, so their errors are correlated, and leaving out single rows
would make the interval too short. The jackknife with Student's t holds with few clusters, where a bootstrap of clusters
does not (Bell and McCaffrey 2002; MacKinnon, Nielsen and Webb 2023, doi:10.1002/jae.2993). `benchmarks.intervals`
measures its coverage.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from finetune.metrics.weighted import Floats, Statistic, of_all
from zymogen import keyed_random

FEWEST_CLUSTERS = 3
SHARED_TRAINING = 2.0
"""Factor on the variance of an out-of-fold score. Each label is predicted by models that learned from most others, and
they by models that learned from it. The variance of a linear learner's score, if there is nothing to learn, is at most
twice that of an independent tested part: for the quadratic form y'Hy it is 2 |(H + H')/2|², and |H|² with fixed
predictions."""
_MOST_BLOCKS = 200
"""More clusters than these are left out in blocks of several, drawn by hash."""
_FEWEST_BLOCKS = 50
_SEED = 0
_BLOCK_CELLS = 1 << 20
_MOST_CELLS = 1 << 28
"""Rows times blocks, at most: a table of a million residues is left out in fewer blocks."""
_LEVEL = 0.975
_NORMAL = 1.959964
_LEAST = 1e-9
"""What is less is left by rounding."""


class Jackknife(NamedTuple):
    """A statistic, and how much it depends on single clusters."""

    value: float
    error: float
    """Standard error; NaN where the statistic is undefined without one of the clusters."""
    freedom: float
    """Degrees of freedom of the error."""
    clusters: int


def jackknife(statistic: Statistic, clusters: NDArray[np.generic], cells_a_row: int = 1) -> Jackknife:
    """The standard error of a statistic when clusters are left out one by one.

    The degrees of freedom are one less than the clusters, and at most twice their effective number, which is small
    where one cluster has most of the rows.

    Args:
        statistic: weights (n, b) -> values (b,).
        clusters: (n,) cluster of each row.
        cells_a_row: how many numbers the statistic computes for each row.
    """
    rows = len(clusters)
    distinct, of_row = np.unique(clusters, return_inverse=True)
    most = min(_MOST_BLOCKS, max(_FEWEST_BLOCKS, _MOST_CELLS // (rows * cells_a_row)))
    if len(distinct) > most:
        blocks = np.empty(len(distinct), np.int64)
        blocks[np.argsort(keyed_random.hashes(keyed_random.key(_SEED), np.arange(len(distinct))), kind="stable")] = (
            np.arange(len(distinct)) % most
        )
        of_row = blocks[of_row]
    sizes = np.bincount(of_row).astype(np.float64)
    count = len(sizes)
    value = of_all(statistic, rows)
    if count < FEWEST_CLUSTERS:
        return Jackknife(value, np.nan, np.nan, len(distinct))
    size = max(8, min(count, _BLOCK_CELLS // rows))
    starts = range(0, count, size)
    kept = (of_row[:, None] != np.arange(start, min(start + size, count)) for start in starts)
    values = np.concatenate([statistic(each.astype(np.float64)) for each in kept])
    error = float(np.sqrt((count - 1) / count * ((values - value) ** 2).sum()))
    freedom = min(count - 1, 2 * sizes.sum() ** 2 / (sizes**2).sum())
    return Jackknife(value, error, float(freedom), len(distinct))


def score_interval(
    found: Jackknife, lowest: float, clusters: NDArray[np.generic], classes: Floats | None = None, factor: float = 1.0
) -> tuple[float, float]:
    """Ends of the 95 % interval of a score in ``[lowest, 1]``: a Wilson interval with the error of the jackknife.

    Its variance goes with (score - lowest)(1 - score) (Wilson 1927, doi:10.1080/01621459.1927.10502953), so that it
    stays within the range. Where leaving out a cluster changes nothing, or leaves no two classes, clusters are counted
    instead: an area under the curve of m and n of them has the variance of 3mn / (m + n + 1) throws of a coin. There is
    one degree of freedom more than of a mean, because the jackknife overstates the variance of a ranking of few
    clusters (Efron and Stein 1981, doi:10.1214/aos/1176345462).

    Args:
        found: of the score.
        lowest: its lowest value.
        clusters: (n,) cluster of each row.
        classes: (n,) class of each row, of areas under curves.
        factor: on the variance.

    Returns:
        NaN twice where there are fewer than three clusters, or the score of numbers is undefined without one of them.
    """
    from scipy.stats import t

    if found.clusters < FEWEST_CLUSTERS or (classes is None and np.isnan(found.error)):
        return np.nan, np.nan
    share = min(max((found.value - lowest) / (1 - lowest), 0.0), 1.0)
    product = share * (1 - share)
    if found.error > _LEAST and product > _LEAST:
        ratio = (t.ppf(_LEVEL, found.freedom + 1) * found.error / (1 - lowest)) ** 2 / product
    else:
        ratio = _NORMAL**2 / (found.clusters if classes is None else _throws(clusters, classes))
    ratio *= factor
    middle, half = (share + ratio / 2) / (1 + ratio), np.sqrt(ratio * product + ratio**2 / 4) / (1 + ratio)
    low, high = (lowest + (1 - lowest) * end for end in (middle - half, middle + half))
    return float(low), float(high)


def _throws(clusters: NDArray[np.generic], classes: Floats) -> float:
    """How many throws of a coin have the variance of the mean area under the curves of all classes."""
    variances = []
    for label in np.unique(classes):
        own, others = (len(np.unique(clusters[is_one])) for is_one in (classes == label, classes != label))
        variances.append((own + others + 1) / (3 * own * others))
    return 1 / float(np.mean(variances))


def difference_interval(found: Jackknife, factor: float = 1.0) -> tuple[float, float]:
    """Ends of the 95 % interval of a difference of two scores; NaN twice where its error is unknown.

    A difference that no cluster changes, as of a perfect model and one that knows nothing, has the error 1 / sqrt(n) of
    n clusters.
    """
    from scipy.stats import t

    half = t.ppf(_LEVEL, found.freedom) * np.sqrt(factor) * found.error
    if found.error < _LEAST < abs(found.value):
        half = _NORMAL * np.sqrt(factor / found.clusters)
    return float(found.value - half), float(found.value + half)
