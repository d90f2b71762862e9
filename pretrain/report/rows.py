"""Rows of values and times, one below the other: scores with their intervals, what happened when.

In: rows, a width in pixels. Out: SVG. Kept: nothing.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from pretrain.report.chart import CROSS, TEXT, as_svg, new_figure, shortened, spread_labels, ticks, write
from pretrain.report.palette import placeholder
from pretrain.report.section import Drawing

_ROW = 44
"""Height of a row in pixels: a line of text, and the marks below it."""
_MARGIN = 12
_GLYPH = 0.55
"""Width of a letter over its height, on average."""


@dataclass(frozen=True, slots=True)
class IntervalRow:
    """What is drawn beside one label; NaN where a number is not known."""

    label: str
    value: float | None = None
    """Drawn as a dot, and written at the right with the first of the bars as its interval; None: there is none."""
    bars: tuple[tuple[float, float], ...] = ()
    """Intervals, or beginnings and ends of what took time."""
    baseline: float = math.nan
    """Drawn as an upright stroke."""
    points: tuple[float, ...] = ()
    """What the value is the mean of, or times; each is a small stroke."""
    crosses: tuple[float, ...] = ()
    """Times of failures."""


@dataclass(frozen=True, slots=True, kw_only=True)
class IntervalPlot(Drawing):
    """Rows over one axis."""

    rows: tuple[IntervalRow, ...]
    x_title: str
    number: Callable[[float], str] = "{:.3g}".format
    """Text of a value, and of a tick of the axis."""
    in_words: str = ""
    """What the rows show, where they have no values."""

    @property
    def summary(self) -> str:
        """Every value."""
        return self.in_words or "; ".join(f"{row.label}: {self._value(row)}" for row in self.rows)

    def draw(self, width: int) -> str:
        """The rows as an SVG element of `width` pixels."""
        figure, axes = new_figure(width, _ROW * len(self.rows) + 52, left=_MARGIN, right=_MARGIN, top=6, bottom=46)
        axes.set_yticks([])
        axes.grid(axis="x", color=placeholder("grid"), linewidth=1)
        drawn = [n for row in self.rows for n in (*sum(row.bars, ()), *row.points, *row.crosses) if math.isfinite(n)]
        per_pixel = float(np.ptp(drawn or [0.0])) / (width - 2 * _MARGIN) or 1.0
        for number, row in enumerate(self.rows):
            at, value = number + 0.68, self._value(row)
            place: dict[str, Any] = {"va": "center", "xycoords": ("axes fraction", "data")}
            label = shortened(row.label, width - 2 * _MARGIN - (len(value) + 1) * _GLYPH * TEXT)
            write(axes, label, (0, number + 0.28), (0, 0), color=placeholder("ink"), **place)
            write(axes, value, (1, number + 0.28), (0, 0), ha="right", color=placeholder("blue"), **place)
            for low, high in row.bars:
                ends = low, max(high, low + 2 * per_pixel)  # a short one is seen too
                axes.plot(ends, (at, at), color=placeholder("blue"), linewidth=2, solid_capstyle="butt")
            for points, gap, colour, style in (
                (row.points, 1, "train", {"marker": "|", "markersize": 10}),
                ([math.nan if row.value is None else row.value], 1, "blue", {"marker": "o", "markersize": 6}),
                ([row.baseline], 1, "ink", {"marker": "|", "markersize": 14, "mew": 2}),
                (row.crosses, CROSS, "fault", {"marker": "x", "markersize": 7, "mew": 1.6}),
            ):
                kept = spread_labels(np.array(points), gap * per_pixel)
                axes.plot(kept, [at] * len(kept), color=placeholder(colour), linestyle="none", **style)
        axes.margins(x=0.06)
        axes.set_ylim(len(self.rows), 0)
        ticks(axes.xaxis, self.number, max(2, (width - 2 * _MARGIN) // 80))
        axes.set_xlabel(self.x_title, loc="right")
        return as_svg(figure, f"{self.name}-{width}", self.title, self.summary)

    def _value(self, row: IntervalRow) -> str:
        """The value of a row with its interval."""
        if row.value is None or not math.isfinite(row.value):
            return "" if row.value is None else "not finite"
        known = [each for each in row.bars[:1] if math.isfinite(sum(each))]
        return self.number(row.value) + "".join(f" ({self.number(a)} to {self.number(b)})" for a, b in known)
