"""Values with intervals, one below the other: scores of groups of proteins, of several models.

In: rows, a width in pixels. Out: SVG. Kept: nothing.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

from pretrain.report.chart import TEXT, as_svg, new_figure, ticks_x
from pretrain.report.palette import placeholder

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


@dataclass(frozen=True, slots=True)
class Intervals:
    """Rows of values over one axis (a `section.Drawing`)."""

    name: str
    title: str
    rows: tuple[Measured, ...]
    x_title: str
    value: Callable[[float], str] = "{:.3g}".format
    note: str = ""

    @property
    def summary(self) -> str:
        """Every value, for readers who do not see it."""
        return "; ".join(f"{row.label}: {self._said(row)}" for row in self.rows)

    def draw(self, width: int) -> str:
        """The rows as an SVG element of `width` pixels."""
        height = _ROW * len(self.rows) + 52
        figure, axes = new_figure(width, height, left=12, right=12, top=6, bottom=46)
        numbers = [n for row in self.rows for n in (row.value, row.low, row.high, row.baseline, *row.points)]
        ends = [number for number in numbers if math.isfinite(number)]
        low, high = (min(ends), max(ends)) if ends else (0.0, 1.0)
        pad = 0.06 * (high - low) or abs(low) / 10 or 1.0
        axes.set_xlim(low - pad, high + pad)
        axes.set_ylim(len(self.rows), 0)
        axes.set_yticks([])
        axes.grid(axis="x", color=placeholder("grid"), linewidth=1)
        for number, row in enumerate(self.rows):
            at, blue = number + 0.68, placeholder("blue")
            words = {"fontsize": TEXT, "va": "center", "xycoords": ("axes fraction", "data")}
            room = int((width - 24) / (_GLYPH * TEXT)) - len(self._said(row)) - 1
            label = row.label if len(row.label) <= room else f"{row.label[: room - 1]}…"
            axes.annotate(label, (0, number + 0.28), ha="left", color=placeholder("ink"), **words)
            axes.annotate(self._said(row), (1, number + 0.28), ha="right", color=blue, **words)
            if math.isfinite(row.low) and math.isfinite(row.high):
                axes.plot((row.low, row.high), (at, at), color=blue, linewidth=2, solid_capstyle="butt")
            if row.points:
                many = {"marker": "|", "markersize": 10, "linestyle": "none"}
                axes.plot(row.points, [at] * len(row.points), color=placeholder("train"), **many)
            if math.isfinite(row.value):
                axes.plot([row.value], [at], color=blue, marker="o", markersize=6, linestyle="none")
            if math.isfinite(row.baseline):
                axes.plot([row.baseline], [at], color=placeholder("ink"), marker="|", markersize=14, mew=2)
        ticks_x(axes, low - pad, high + pad, self.value, max(2, (width - 24) // 80))
        text = {"fontsize": TEXT, "color": placeholder("muted"), "ha": "right", "va": "baseline"}
        axes.annotate(self.x_title, (1, 0), (0, -40), xycoords="axes fraction", textcoords="offset pixels", **text)
        return as_svg(figure, f"{self.name}-{width}", self.title, self.summary)

    def _said(self, row: Measured) -> str:
        known = math.isfinite(row.low) and math.isfinite(row.high)
        ends = f" ({self.value(row.low)} to {self.value(row.high)})" if known else ""
        return f"{self.value(row.value)}{ends}" if math.isfinite(row.value) else "not finite"
