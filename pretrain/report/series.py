"""Series of numbers, thinned to what a picture can show.

In: any number of points. Out: at most one span a pixel column, with its lowest and highest value. Kept: nothing.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Numbers = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class ThinnedSeries:
    """Points by rising x; where several share a column, the middle and the ends of their values."""

    x: Numbers
    low: Numbers
    middle: Numbers
    """The median of the column; NaN where no value is finite."""
    high: Numbers

    @property
    def has_band(self) -> bool:
        """Whether any column holds more than one value."""
        return bool((self.high > self.low).any())


def thin(x: Numbers, y: Numbers, columns: int) -> ThinnedSeries:
    """At most `columns` points of a series; its lowest and highest finite value stay.

    Args:
        x: (n,) finite, in any order.
        y: (n,); values that are not finite become gaps, or nothing where their column has a finite one.
        columns: the most points that are kept.
    """
    order = np.argsort(x, kind="stable")
    x, y = x[order], np.where(np.isfinite(y[order]), y[order], np.nan)
    if len(x) <= columns:
        return ThinnedSeries(x, y, y, y)
    column = np.minimum(((x - x[0]) / max(x[-1] - x[0], 1e-300) * columns).astype(np.int64), columns - 1)
    starts = np.flatnonzero(np.diff(column, prepend=-1))
    finite = [part[~np.isnan(part)] for part in np.split(y, starts[1:])]
    middle = np.array([np.median(part) if len(part) else np.nan for part in finite])
    mean_x = np.add.reduceat(x, starts) / np.diff(starts, append=len(x))
    return ThinnedSeries(mean_x, np.fmin.reduceat(y, starts), middle, np.fmax.reduceat(y, starts))
