"""Square pictures: points or lines over two axes that begin anywhere, as SVG whose text is text.

In: a `Square`, a width in pixels. Out: SVG. Kept: nothing.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pretrain.report.chart import TEXT, Dash, as_svg, new_figure, ticks_x, titles
from pretrain.report.palette import placeholder

Floats = NDArray[np.float64]
_LARGEST = 360
"""Height in pixels at most."""


@dataclass(frozen=True, slots=True)
class Curve:
    """A line of a picture."""

    label: str
    x: Floats
    y: Floats
    colour: str
    """Name in `pretrain.report.palette.COLOURS`."""
    dash: Dash = "solid"
    marked: bool = False


@dataclass(frozen=True, slots=True)
class Square:
    """One picture (a `pretrain.report.section.Drawing`)."""

    name: str
    title: str
    x_title: str
    y_title: str
    x_range: tuple[float, float]
    y_range: tuple[float, float]
    points: tuple[Floats, Floats] | None = None
    curves: tuple[Curve, ...] = ()
    diagonal: bool = True
    """Whether equal values of both axes are joined by a line."""
    value: Callable[[float], str] = "{:.3g}".format
    note: str = ""
    summary: str = ""

    def draw(self, width: int) -> str:
        """The picture as an SVG element of `width` pixels."""
        height = min(width, _LARGEST)
        figure, axes = new_figure(width, height, left=54, right=12, top=30, bottom=42)
        axes.set_xlim(*self.x_range)
        axes.set_ylim(*self.y_range)
        if self.diagonal:
            low, high = (pick(self.x_range[end], self.y_range[end]) for end, pick in ((0, max), (1, min)))
            axes.plot((low, high), (low, high), color=placeholder("muted"), linewidth=1, linestyle="dotted")
        if self.points is not None:
            size, alpha = (9, 0.5) if len(self.points[0]) < 300 else (5, 0.35)
            axes.scatter(*self.points, s=size, color=placeholder("blue"), alpha=alpha, linewidth=0)
        for curve in self.curves:
            colour, marker = placeholder(curve.colour), "o" if curve.marked else None
            axes.plot(
                *(curve.x, curve.y), color=colour, linewidth=1.75, linestyle=curve.dash, marker=marker, markersize=4
            )
        self._draw_names(axes)
        self._draw_ticks(axes, width)
        titles(axes, self.x_title, self.y_title, at=1.0)
        return as_svg(figure, f"{self.name}-{width}", self.title, self.summary)

    def _draw_names(self, axes: Any) -> None:
        """The names of curves in the corner at the lower right, which rising curves leave free."""
        named = [curve for curve in self.curves if curve.label]
        for number, curve in enumerate(reversed(named)):
            axes.annotate(
                curve.label,
                (1, 0),
                (-6, 8 + number * (TEXT + 5)),
                xycoords="axes fraction",
                textcoords="offset pixels",
                ha="right",
                fontsize=TEXT,
                color=placeholder(curve.colour),
            )

    def _draw_ticks(self, axes: Any, width: int) -> None:
        from matplotlib.ticker import FuncFormatter, MaxNLocator

        axes.yaxis.set_major_locator(MaxNLocator(nbins=5, steps=[1, 2, 2.5, 5, 10]))
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: self.value(value)))
        ticks_x(axes, *self.x_range, self.value, most=max(2, (width - 66) // 80))
