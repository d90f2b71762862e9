"""Charts: lines or points over two axes, as SVG whose text is text.

In: a `Chart` of any number of points. Out: SVG with at most one span a pixel column, of its lowest and highest value.
Kept: nothing.

All drawings have one width, in which their text can be read on a phone, and two stand side by side on a desktop.
Colours are CSS variables, with a placeholder where a library takes only hexadecimal ones. The hues are those of Okabe
and Ito (2008), which readers who are colour-blind can tell apart, darkened or lightened until text in them has a
contrast of 4.5 with the paper.
"""

import io
import math
import re
from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from html import escape
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from pretrain.report.section import Drawing
from zymogen.console.safe_text import printable, redacted

Numbers = NDArray[np.float64]


def thin(x: Numbers, y: Numbers, columns: int) -> Numbers:
    """At most `columns` points of a series; its lowest and highest finite value stay.

    Args:
        x: (n,) finite, in any order.
        y: (n,); values that are not finite become gaps, or nothing where their column has a finite one.
        columns: the most points that are kept.

    Returns:
        (4, points) by rising x: x, and the lowest, the median and the highest value where several share a column; NaN
        where no value is finite.
    """
    order = np.argsort(x, kind="stable")
    x, y = x[order], np.where(np.isfinite(y[order]), y[order], np.nan)
    if len(x) <= columns:
        return np.stack([x, y, y, y])
    column = np.minimum(((x - x[0]) / max(x[-1] - x[0], 1e-300) * columns).astype(np.int64), columns - 1)
    starts = np.flatnonzero(np.diff(column, prepend=-1))
    finite = [part[~np.isnan(part)] for part in np.split(y, starts[1:])]
    middle = [np.median(part) if len(part) else np.nan for part in finite]
    mean_x = np.add.reduceat(x, starts) / np.diff(starts, append=len(x))
    return np.stack([mean_x, np.fmin.reduceat(y, starts), middle, np.fmax.reduceat(y, starts)])


COLOURS: dict[str, tuple[str, str]] = {
    "paper": ("#ffffff", "#15181d"),
    "ink": ("#1c2127", "#e9ebee"),
    "muted": ("#5b6470", "#a4adb8"),
    "grid": ("#e7e9ec", "#2b3038"),
    "train": ("#68717c", "#98a1ad"),
    "blue": ("#005f9e", "#6db8f2"),
    "orange": ("#a84a00", "#f0a25a"),
    "green": ("#00734f", "#57cfa6"),
    "fault": ("#a01f5c", "#f490bb"),
    # Probability of a residue: five steps from the paper to the darkest, or the lightest.
    "p0": ("#f3f4f6", "#22272e"),
    "p1": ("#cfe0f1", "#203d58"),
    "p2": ("#9cc4e6", "#27608f"),
    "p3": ("#2b74b3", "#7dbcec"),
    "p4": ("#0a4479", "#cfe6fa"),
}
"""Light and dark form of each colour."""
PLACEHOLDERS = {name: f"#0101{number:02x}" for number, name in enumerate(COLOURS, 16)}
"""A hexadecimal colour that stands for each name until `named` puts the variable in its place."""


def named(drawing: str) -> str:
    """The drawing with CSS variables instead of placeholders."""
    by_colour = {colour: f"var(--{name})" for name, colour in PLACEHOLDERS.items()}
    return re.sub("|".join(by_colour), lambda found: by_colour[found[0]], drawing)


def style_sheet() -> str:
    """CSS that gives the variables their values: on paper always the light ones."""
    light, dark = ("".join(f"--{name}:{forms[form]};" for name, forms in COLOURS.items()) for form in (0, 1))
    return f":root{{color-scheme:light dark;{light}}}@media screen and (prefers-color-scheme:dark){{:root{{{dark}}}}}"


WIDTH = 400
"""Pixels of a drawing: on a phone of 390 pixels its text has 11."""
TEXT = 13.0
"""Size of text in pixels, where a drawing is shown in its own width."""
GLYPH = 0.6
"""Width of a letter over its height; DejaVu Sans, the widest of the usual system typefaces."""
CROSS = 9
"""Pixels from one cross to the next at least."""
_COLUMNS, _ROW = 2, 20
"""Labels of lines side by side above the chart, and pixels from one row of them to the next."""
_LEFT, _TOP, _BOTTOM = 54, 30, 42
_LEGEND: dict[str, Any] = {
    **{"loc": "lower left", "fontsize": TEXT, "labelcolor": "linecolor", "frameon": False, "handlelength": 1.5},
    **{"borderpad": 0, "borderaxespad": 0, "labelspacing": 0.4, "columnspacing": 1.2},
}
_STYLE: dict[str, Any] = {
    "svg.fonttype": "none",
    "text.parse_math": False,  # names from files, in which "$" begins no formula
    **dict.fromkeys((f"axes.spines.{side}" for side in ("left", "right", "top", "bottom")), False),
    **dict.fromkeys(("figure.facecolor", "axes.facecolor"), "none"),
    **{"axes.grid": True, "axes.grid.axis": "y", "axes.axisbelow": True},
    **{"grid.color": PLACEHOLDERS["grid"], "grid.linewidth": 1},
    **{f"{axis}.{name}": value for axis in ("xtick", "ytick") for name, value in (("major.size", 0), ("major.pad", 6))},
    **dict.fromkeys(("xtick.labelsize", "ytick.labelsize", "axes.labelsize"), TEXT),
    **dict.fromkeys(("xtick.labelcolor", "ytick.labelcolor", "axes.labelcolor"), PLACEHOLDERS["muted"]),
    "xaxis.labellocation": "right",
}


class Plot(Drawing):
    """A drawing by matplotlib."""

    def draw(self) -> str:
        """The drawing as an SVG element, with a title and a description."""
        from matplotlib import rc_context
        from matplotlib.text import Text

        written = io.StringIO()
        style: Any = _STYLE | {"svg.hashsalt": self.name}
        with rc_context(style):
            figure = self.figure()
            for text in figure.findobj(Text):
                text.set_text(printable(text.get_text()))
            figure.savefig(written, format="svg", metadata=dict.fromkeys(("Date", "Creator", "Format", "Type")))
        drawn = written.getvalue()
        inside = drawn[drawn.index(">", drawn.index("<svg")) + 1 : drawn.rindex("</svg>")]
        inside = re.sub(r"<metadata>.*?</metadata>|<style.*?</style>", "", inside, flags=re.S)
        inside = re.sub(r'<g id="[^"]*"', "<g", inside)
        inside = re.sub(r" font-family: [^;]*;", "", inside)  # the page's own, in which the text is read
        inside = named(re.sub(r"\n\s*", "\n", inside.replace("xlink:href", "href")))
        title, summary, name = escape(printable(self.title)), escape(printable(self.summary)), self.name
        labels = f'<title id="{name}-title">{title}</title><desc id="{name}-desc">{summary}</desc>'
        box = f'viewBox="0 0 {WIDTH} {figure.get_size_inches()[1] * 72:g}"'
        return f'<svg {box} role="img" aria-labelledby="{name}-title {name}-desc">{labels}{inside}</svg>'

    @abstractmethod
    def figure(self) -> Any:
        """The drawing as a figure of matplotlib."""


Dash = Literal["solid", "dashed", "dotted", "dashdot", "points"]


@dataclass(frozen=True, slots=True)
class ChartSeries:
    """One series of a chart."""

    label: str
    """Stands above the chart with its last value; if empty, the value stands there alone."""
    x: Numbers
    y: Numbers
    colour: str
    """Name in `COLOURS`."""
    dash: Dash = "solid"
    """Style of the line; "points" draws points without one."""
    marked: bool = False
    """Whether each point is marked, as for few points far apart."""
    across: bool = False
    """Whether its last value is drawn across the whole chart, as of a constant."""

    @property
    def summary(self) -> str:
        """First and last value."""
        name, finite = f"{self.label}: " if self.label else "", self.y[np.isfinite(self.y)]
        if self.dash == "points":
            return f"{name}{len(self.x)} points"
        if not len(finite):
            return f"{name}no finite value"
        return f"{name}{finite[-1]:.4g}" if self.across else f"{name}from {finite[0]:.4g} to {finite[-1]:.4g}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart(Plot):
    """Lines or points over two axes."""

    lines: tuple[ChartSeries, ...]
    x_title: str
    y_title: str
    value: Callable[[float], str] = "{:.3g}".format
    """Text of a value on the y axis."""
    x_value: Callable[[float], str] = "{:.3g}".format
    ranges: tuple[tuple[float, float], tuple[float, float]] | None = None
    """Ends of both axes; None for an x axis from 0, and a y axis that holds all values."""
    diagonal: bool = False
    """Whether equal values of both axes are joined by a line."""
    logarithmic: bool = False
    from_zero: bool = False
    has_perplexity: bool = False
    """Whether the values are losses, whose perplexities stand at the right and in the labels."""
    shows_last: bool = True
    """Whether the last value of each line is shown."""
    stages: tuple[tuple[float, str], ...] = ()
    """Where parts of the x axis begin, and their names."""
    height: int = 190

    @property
    def summary(self) -> str:
        """First and last value of each line."""
        last = max((line.x[-1] for line in self.lines if len(line.x)), default=0)
        shown = "; ".join(line.summary for line in self.lines)
        return f"{shown} ({self.y_title}), over {self.x_title} to {self.x_value(last)}."

    @property
    def has_gaps(self) -> bool:
        """Whether any value is not finite, which the page explains."""
        return not all(np.isfinite(line.y).all() for line in self.lines)

    def figure(self) -> Any:
        """The chart as a figure of matplotlib."""
        labels = sum(bool(line.label) for line in self.lines)
        columns = min(labels, _COLUMNS) or 1
        above = _ROW * -(-labels // columns)
        right = 50 if self.has_perplexity else 22
        inside = WIDTH - _LEFT - right
        axes = new_axes(self.height + above, left=_LEFT, right=right, top=_TOP + above, bottom=_BOTTOM)
        drawn = [thin(line.x, line.y, inside) for line in self.lines]
        for line, points in zip(self.lines, drawn, strict=True):
            _draw_line(axes, line, points, shortened(self._label(line), WIDTH / columns - 30))
        self._set_axes(axes, max((float(points[0, -1]) for points in drawn if points.size), default=0.0) or 1.0)
        per_pixel = np.ptp(axes.get_xlim()) / inside
        gaps = spread(np.concatenate([points[0, np.isnan(points[2])] for points in drawn]), CROSS * per_pixel)
        style = {"marker": "x", "markersize": 6, "linestyle": "none", "color": PLACEHOLDERS["fault"], "zorder": 4}
        # On the axis, because values that are not finite have no height to be drawn at.
        axes.plot(gaps, np.zeros(len(gaps)), transform=axes.get_xaxis_transform(), clip_on=False, **style)
        self._draw_stages(axes, per_pixel)
        ticks(axes.xaxis, self.x_value, max(1, inside // 72))
        axes.set_xlabel(self.x_title)
        write(axes, self.y_title, (0, 1), (-_LEFT, 12))
        if self.has_perplexity:
            self._draw_perplexities(axes)
        if labels:
            corner = (-_LEFT / inside, 1 + (_TOP + 2) / (self.height - _TOP - _BOTTOM))
            axes.legend(bbox_to_anchor=corner, ncols=columns, **_LEGEND)
        elif self.shows_last:
            colour = PLACEHOLDERS[self.lines[0].colour]
            write(axes, self._label(self.lines[0]), (1, 1), (0, 12), ha="right", color=colour)
        return axes.figure

    def _label(self, line: ChartSeries) -> str:
        if not self.shows_last:
            return line.label
        ending = float(line.y[np.argmax(line.x)]) if len(line.y) else math.nan
        value = math.exp(min(ending, 700.0)) if self.has_perplexity else ending
        return f"{line.label} {self.value(value) if math.isfinite(ending) else 'NaN'}".strip()

    def _set_axes(self, axes: Any, high_x: float) -> None:
        from matplotlib.ticker import LogLocator

        axes.margins(y=0.06)
        axes.set_xlim(0, high_x)
        if self.ranges is not None:
            axes.set_xlim(self.ranges[0])
            axes.set_ylim(self.ranges[1])
        if self.diagonal:
            axes.axline((0, 0), slope=1, color=PLACEHOLDERS["muted"], linewidth=1, linestyle="dotted")
        ticks(axes.yaxis, self.value, max(3, self.height // 50))
        if self.logarithmic and any((line.y > 0).any() for line in self.lines):
            axes.set_yscale("log", nonpositive="mask")
            low, high = axes.get_ylim()
            axes.yaxis.set_major_locator(LogLocator(subs=(1.0,) if high / low > 30 else (1.0, 2.0, 5.0), numticks=6))
            axes.yaxis.set_major_formatter(lambda number, _: self.value(number))
            axes.minorticks_off()
        low, high = axes.get_ylim()
        if self.from_zero:
            axes.set_ylim(min(0.0, low), high)
        if self.stages:
            axes.set_ylim(low - 24 / self.height * (high - low), high)  # room for their names

    def _draw_perplexities(self, axes: Any) -> None:
        """A second axis at the right."""
        low, high = np.exp(np.minimum(axes.get_ylim(), 700.0))
        nice = [digit * 10.0**power for power in range(0, 7) for digit in (1, 1.5, 2, 3, 5, 7)]
        values = [value for value in nice if low <= value <= high]
        values = values[:: -(-len(values) // max(3, self.height // 36)) or 1]
        other = axes.secondary_yaxis("right")
        other.set_yticks(np.log(values), [f"{value:g}" for value in values])
        other.spines["right"].set_visible(False)
        write(axes, "perplexity", (1, 1), (44, 12), ha="right")

    def _draw_stages(self, axes: Any, per_pixel: float) -> None:
        """A line where each stage begins, and its name where there is room."""
        high_x = axes.get_xlim()[1]
        ends = [*(start for start, _ in self.stages[1:]), high_x]
        for (start, label), end in zip(self.stages, ends, strict=False):
            if 0 < start < high_x:
                axes.axvline(start, color=PLACEHOLDERS["muted"], linewidth=1, dashes=(2, 3), zorder=1)
            if (min(end, high_x) - start) / per_pixel > len(label) * TEXT * GLYPH + 8:
                write(axes, label, (start, 0), (5, 8), xycoords=("data", "axes fraction"))


def _draw_line(axes: Any, line: ChartSeries, points: Numbers, label: str) -> None:
    x, low, middle, high = points
    label = f"\u200b{label}" if label.startswith("_") else label  # matplotlib leaves out what begins so
    style = {"color": PLACEHOLDERS[line.colour], "label": label if line.label else None}
    if line.dash == "points":
        size, alpha = (9, 0.5) if len(line.x) < 300 else (5, 0.35)
        axes.scatter(line.x, line.y, s=size, alpha=None if line.label else alpha, linewidth=0, **style)
        return
    style["linestyle"] = line.dash
    finite = middle[~np.isnan(middle)]
    if line.across:
        axes.axhline(finite[-1] if len(finite) else math.nan, linewidth=1.5, **style)
        return
    if (high > low).any():
        axes.fill_between(x, low, high, color=style["color"], alpha=0.18, linewidth=0)
    marker = "o" if (line.marked and len(x) <= 40) or len(finite) < 3 else None
    wide = 1.3 if line.colour == "train" else 2
    axes.plot(x, middle, linewidth=wide, marker=marker, markersize=4.5, markeredgewidth=0, **style)


# What every drawing shares ------------------------------------------------------------------------


def new_axes(height: int, *, left: int, right: int, top: int, bottom: int) -> Any:
    """The axes of a new figure, with margins in pixels; no frame, and lines across at the ticks."""
    from matplotlib.figure import Figure  # not pyplot, which has a global state and may need a display

    figure = Figure(figsize=(WIDTH / 72, height / 72), dpi=72)  # matplotlib writes SVG at 72 units an inch
    share = (left / WIDTH, bottom / height, (WIDTH - left - right) / WIDTH, (height - top - bottom) / height)
    return figure.add_axes(share)


def spread(at: Numbers, gap: float) -> Numbers:
    """One of the numbers in each span of `gap`; those that are not finite are left out."""
    at = at[np.isfinite(at)]
    return at[np.unique((at / gap).astype(np.int64), return_index=True)[1]]


def ticks(axis: Any, value: Callable[[float], str], most: int) -> None:
    """At most `most` round ticks of an axis, with their texts."""
    from matplotlib.ticker import MaxNLocator

    axis.set_major_locator(MaxNLocator(nbins=most, steps=[1, 2, 2.5, 5, 10]))
    axis.set_major_formatter(lambda number, _: value(number))


def shortened(text: str, width: float) -> str:
    """The text, cut to as many pixels; without tokens, of which a part would not be found afterwards."""
    text, letters = redacted(text), int(width / (TEXT * GLYPH))
    return text if len(text) <= letters else f"{text[: letters - 1]}…"


def write(axes: Any, text: str, at: tuple[float, float], offset: tuple[float, float], **style: Any) -> None:
    """Text at a place of the axes, in shares of them, with an offset in pixels; muted without another colour."""
    style = {"fontsize": TEXT, "color": PLACEHOLDERS["muted"], "annotation_clip": False, **style}
    axes.annotate(text, at, offset, **{"xycoords": "axes fraction", "textcoords": "offset pixels", **style})
