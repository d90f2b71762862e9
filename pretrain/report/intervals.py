"""Values with intervals, one below the other: scores of groups of proteins, of several models.

In: rows, a width in pixels. Out: SVG. Kept: nothing.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from pretrain.report.chart import TEXT, as_svg, new_figure, shortened, ticks, write
from pretrain.report.palette import placeholder
from pretrain.report.section import Drawing

_ROW = 44
"""Height of a row in pixels: a line of text, and the mark below it."""
_GLYPH = 0.55
"""Width of a letter over its height, on average."""


@dataclass(frozen=True, slots=True)
class Measured:
    """One value; NaN for an end that is not known."""

    label: str
    value: float
    low: float
    high: float
    baseline: float = math.nan
    """Drawn as an upright stroke."""
    points: tuple[float, ...] = ()
    """What the value is the mean of; each is a small mark."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Intervals(Drawing):
    """Rows of values over one axis."""

    rows: tuple[Measured, ...]
    x_title: str
    value: Callable[[float], str] = "{:.3g}".format

    @property
    def summary(self) -> str:
        """Every value."""
        return "; ".join(f"{row.label}: {self._said(row)}" for row in self.rows)

    def draw(self, width: int) -> str:
        """The rows as an SVG element of `width` pixels."""
        figure, axes = new_figure(width, _ROW * len(self.rows) + 52, left=12, right=12, top=6, bottom=46)
        axes.set_yticks([])
        axes.grid(axis="x", color=placeholder("grid"), linewidth=1)
        for number, row in enumerate(self.rows):
            at, blue = number + 0.68, placeholder("blue")
            place: dict[str, Any] = {"va": "center", "xycoords": ("axes fraction", "data")}
            label = shortened(row.label, width - 24 - (len(self._said(row)) + 1) * _GLYPH * TEXT)
            write(axes, label, (0, number + 0.28), (0, 0), color=placeholder("ink"), **place)
            write(axes, self._said(row), (1, number + 0.28), (0, 0), ha="right", color=blue, **place)
            axes.plot((row.low, row.high), (at, at), color=blue, linewidth=2, solid_capstyle="butt")
            for points, colour, style in (
                (row.points, "train", {"marker": "|", "markersize": 10}),
                ((row.value,), "blue", {"marker": "o", "markersize": 6}),
                ((row.baseline,), "ink", {"marker": "|", "markersize": 14, "mew": 2}),
            ):
                axes.plot(points, [at] * len(points), color=placeholder(colour), linestyle="none", **style)
        axes.margins(x=0.06)
        axes.set_ylim(len(self.rows), 0)
        ticks(axes.xaxis, self.value, max(2, (width - 24) // 80))
        axes.set_xlabel(self.x_title, loc="right")
        return as_svg(figure, f"{self.name}-{width}", self.title, self.summary)

    def _said(self, row: Measured) -> str:
        known = math.isfinite(row.low) and math.isfinite(row.high)
        ends = f" ({self.value(row.low)} to {self.value(row.high)})" if known else ""
        return f"{self.value(row.value)}{ends}" if math.isfinite(row.value) else "not finite"
