"""Series of numbers, thinned to what a picture can show.

In: any number of points. Out: at most one span a pixel column, with its lowest and highest value. Kept: nothing.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Numbers = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Thinned:
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


def thinned(x: Numbers, y: Numbers, columns: int) -> Thinned:
    """At most `columns` points of a series; its lowest and highest finite value stay.

    Args:
        x: (n,) finite, in any order.
        y: (n,); values that are not finite become gaps, or nothing where their column has a finite one.
        columns: the most points that are kept.
    """
    order = np.argsort(x, kind="stable")
    x, y = x[order], np.where(np.isfinite(y[order]), y[order], np.nan)
    if len(x) <= columns:
        return Thinned(x, y, y, y)
    column = np.minimum(((x - x[0]) / max(x[-1] - x[0], 1e-300) * columns).astype(np.int64), columns - 1)
    starts = np.flatnonzero(np.diff(column, prepend=-1))
    low, middle, high = (np.full(len(starts), np.nan) for _ in range(3))
    for index, values in enumerate(np.split(y, starts[1:])):
        if len(finite := values[~np.isnan(values)]):
            low[index], middle[index], high[index] = finite.min(), np.median(finite), finite.max()
    return Thinned(np.array([part.mean() for part in np.split(x, starts[1:])]), low, middle, high)


def apart(wanted: list[float], gap: float, low: float, high: float) -> list[float]:
    """Places for labels, each as near to the wanted one as leaves `gap` between neighbours, inside [low, high].

    If they do not fit, they are spread evenly over the whole of it.
    """
    order = sorted(range(len(wanted)), key=lambda index: wanted[index])
    if (len(order) - 1) * gap >= high - low:
        spread = np.linspace(low, high, len(order)).tolist()
        return [spread[order.index(index)] for index in range(len(order))]
    groups: list[tuple[float, int]] = []  # (centre of a group of touching labels, how many)
    for index in order:
        groups.append((wanted[index], 1))
        while len(groups) > 1 and groups[-1][0] - groups[-2][0] < gap * (groups[-1][1] + groups[-2][1]) / 2:
            (b, m), (a, n) = groups.pop(), groups.pop()
            groups.append(((a * n + b * m) / (n + m), n + m))
    places = [centre + gap * (k - (count - 1) / 2) for centre, count in groups for k in range(count)]
    for number in range(len(places)):  # upwards from the bottom, then downwards from the top
        places[number] = max(places[number], low + number * gap)
    for number in range(len(places)):
        places[-1 - number] = min(places[-1 - number], high - number * gap)
    return [places[order.index(index)] for index in range(len(order))]
