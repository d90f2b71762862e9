"""Intervals by the cluster bootstrap: groups are drawn with replacement, each with all of its rows.

In: a statistic of weights, the group of each row. Out: ends of the 95 % interval. Kept: nothing: draws are keyed by the
number of the resample, so that equal rows always have equal intervals.

Rows of a group are relatives, or residues of one protein, so their errors are alike; resampling rows would make the
interval too short (Davison and Hinkley 1997, section 3.8).
"""

import numpy as np
from numpy.typing import NDArray

from data import draw
from finetune.metrics.weighted import Floats, Statistic

RESAMPLES = 1000
_FEWEST = 100
_SEED = 0
"""Seed of the resamples; not the run's seed, so that runs can be compared."""
_BLOCK_CELLS = 1 << 20
_MOST_CELLS = 1 << 28
"""Rows times resamples, at most: a table of a million residues is resampled fewer times."""


def interval(
    statistic: Statistic, groups: NDArray[np.int64], resamples: int = RESAMPLES, cells_a_row: int = 1
) -> tuple[float, float]:
    """Ends of the 95 % interval of a statistic.

    Resamples without a value, such as those of one class, are left out.

    Args:
        statistic: weights (n, b) -> values (b,).
        groups: (n,) any number of the group of each row.
        resamples: how many; fewer, down to 100, where the rows are very many.
        cells_a_row: how many numbers the statistic computes for each row.

    Returns:
        NaN twice where there is one group, which does not show how much groups differ, or where most resamples have no
        value.
    """
    distinct, group = np.unique(groups, return_inverse=True)
    if len(distinct) < 2 or resamples < 2:
        return np.nan, np.nan
    rows = len(groups)
    count = min(resamples, max(_FEWEST, _MOST_CELLS // (rows * cells_a_row)))
    size = max(8, min(count, _BLOCK_CELLS // rows))
    values = np.concatenate(
        [
            statistic(weights(len(distinct), np.arange(start, min(start + size, count)))[group])
            for start in range(0, count, size)
        ]
    )
    values = values[np.isfinite(values)]
    if 2 * len(values) < count:
        return np.nan, np.nan
    low, high = np.quantile(values, (0.025, 0.975)).tolist()
    return low, high


def weights(num_groups: int, resamples: NDArray[np.int64]) -> Floats:
    """How often each group is drawn: (groups, resamples), each column with the sum `num_groups`.

    Args:
        num_groups: how many groups there are, and how many are drawn.
        resamples: (b,) numbers of the resamples, which key the draws.
    """
    keys = np.array([draw.key(_SEED, number) for number in resamples.tolist()], np.uint64)
    drawn = draw.integers(draw.hashes(keys[:, None], np.arange(num_groups)), num_groups)
    drawn += num_groups * np.arange(len(resamples))[:, None]
    counts = np.bincount(drawn.ravel(), minlength=num_groups * len(resamples))
    return np.ascontiguousarray(counts.reshape(len(resamples), num_groups).T, np.float64)
