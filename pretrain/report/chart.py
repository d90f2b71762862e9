"""Charts: lines over one axis, as SVG whose text is text.

In: a `Chart`, a width in pixels. Out: SVG. Kept: nothing.

Each chart is drawn once for a desktop and once for a phone, because text that is scaled with a picture cannot be read.
"""

import io
import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from html import escape
from typing import Any, Literal

import numpy as np

from data.safe_text import printable
from pretrain.report.palette import named, placeholder
from pretrain.report.series import Numbers, Thinned, apart, thinned

TEXT = 13.0
"""Size of text in pixels, where a drawing is shown in its own width."""
_GLYPH = 0.6
"""Width of a letter over its height; DejaVu Sans, the widest of the usual system typefaces."""
_SHORT_LABEL = 8
"""Letters that a label has room for at least, so that charts of one line have equal axes."""
_CROSS = 9
"""Pixels from one cross to the next at least."""
_NARROW = 400
"""Drawings of at most this many pixels are for a phone."""

Dash = Literal["solid", "dashed", "dotted", "dashdot"]


@dataclass(frozen=True, slots=True)
class Line:
    """One series of a chart."""

    label: str
    """Stands at the end of the line."""
    x: Numbers
    y: Numbers
    colour: str
    """Name in `palette.COLOURS`."""
    dash: Dash = "solid"
    marked: bool = False
    """Whether each point is marked, as for few points far apart."""
    across: bool = False
    """Whether its last value is drawn across the whole chart, as of a constant."""


@dataclass(frozen=True, slots=True)
class Stage:
    """A part of the axis with a name, up to the next one."""

    start: float
    label: str


@dataclass(frozen=True, slots=True)
class Chart:
    """Lines over one axis."""

    name: str
    """Letters and hyphens; begins the ids of the drawing's elements."""
    title: str
    lines: tuple[Line, ...]
    x_title: str
    y_title: str
    value: Callable[[float], str]
    """Text of a value on the y axis."""
    x_value: Callable[[float], str]
    end_value: Callable[[float], str] | None = None
    """Text of the value beside a line's end; that of the axis if not given."""
    summary: str = ""
    """What the chart shows, for readers who do not see it."""
    note: str = ""
    logarithmic: bool = False
    from_zero: bool = False
    second: tuple[str, Callable[[float], float]] | None = None
    """Another axis at the right: its title, and what its values are on the first."""
    stages: tuple[Stage, ...] = ()
    height: int = 190
    label_ends: bool = True
    """Whether the ends of lines carry their labels."""

    def draw(self, width: int) -> str:
        """The chart as an SVG element of `width` pixels."""
        second = self.second if width > _NARROW else None  # a phone has no room for it: the labels have its values
        left, right = 54, 50 if second else 4
        figure, axes = new_figure(width, self.height, left=left, right=right, top=30, bottom=42)
        inside = width - left - right
        room = max(_SHORT_LABEL, max((len(self._label(line)) for line in self.lines), default=0)) * TEXT * _GLYPH + 12
        room = min(room if self.label_ends else 0.0, inside * 2 / 3)
        drawn = [thinned(line.x, line.y, inside) for line in self.lines]
        low_x, high_x = _bounds([np.zeros(1), *(d.x for d in drawn)])
        axes.set_xlim(low_x, low_x + (high_x - low_x) * inside / (inside - room))
        self._set_y(axes, drawn)
        for line, points in zip(self.lines, drawn, strict=True):
            _draw_line(axes, line, points, high_x)
        _draw_gaps(axes, drawn, (high_x - low_x) / (inside - room))
        self._draw_stages(axes, high_x, (high_x - low_x) / (inside - room))
        ticks_x(axes, low_x, high_x, self.x_value, most=max(1, int((inside - room) / 64)))
        titles(axes, self.x_title, self.y_title, at=(high_x - low_x) / (axes.get_xlim()[1] - low_x))
        if second:
            self._draw_second(axes, *second)
        if self.label_ends:
            self._draw_labels(axes, drawn, high_x)
        return as_svg(figure, f"{self.name}-{width}", self.title, self.summary)

    @property
    def has_gaps(self) -> bool:
        """Whether any value is not finite; each is a cross on the axis."""
        return any(not np.isfinite(line.y).all() for line in self.lines)

    def _label(self, line: Line) -> str:
        ending = line.y[np.argmax(line.x)] if len(line.y) else math.nan
        last = (self.end_value or self.value)(float(ending)) if math.isfinite(ending) else "NaN"
        return f"{line.label} {last}".strip()

    def _set_y(self, axes: Any, drawn: list[Thinned]) -> None:
        from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter, NullLocator

        ends = np.concatenate([np.concatenate([d.low, d.high]) for d in drawn] or [np.empty(0)])
        if self.logarithmic:
            ends = ends[ends > 0]
        low, high = _bounds([ends])
        if self.logarithmic:
            axes.set_yscale("log")
            axes.set_ylim(low / 1.15, high * 1.15)
            wide = high / low > 30
            locator: Any = LogLocator(subs=(1.0,) if wide else (1.0, 2.0, 5.0), numticks=6)
            axes.yaxis.set_minor_locator(NullLocator())
            axes.yaxis.set_minor_formatter(NullFormatter())
        else:
            pad = 0.06 * (high - low)
            below = pad + 24 / self.height * (high - low) * bool(self.stages)  # room for their names
            axes.set_ylim(min(0.0, low) if self.from_zero else low - below, high + pad)
            locator = MaxNLocator(nbins=max(3, self.height // 50), steps=[1, 2, 2.5, 5, 10])
        axes.yaxis.set_major_locator(locator)
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: self.value(value)))

    def _draw_second(self, axes: Any, title: str, back: Callable[[float], float]) -> None:
        low, high = axes.get_ylim()
        nice = [digit * 10.0**power for power in range(0, 7) for digit in (1, 1.5, 2, 3, 5, 7)]
        values = [value for value in nice if low <= back(value) <= high]
        most = max(3, self.height // 36)
        values = values[:: -(-len(values) // most)] if values else []
        other = axes.twinx()
        axes.patch.set_visible(False)  # which `twinx` shows
        other.set_ylim(low, high)
        other.set_yticks([back(value) for value in values], [f"{value:g}" for value in values])
        other.tick_params(length=0, pad=6, labelsize=TEXT, labelcolor=placeholder("muted"))
        for spine in other.spines.values():
            spine.set_visible(False)
        text = {"fontsize": TEXT, "color": placeholder("muted"), "va": "baseline"}
        other.annotate(
            title, (1, 1), (44, 12), xycoords="axes fraction", textcoords="offset pixels", ha="right", **text
        )

    def _draw_stages(self, axes: Any, high_x: float, per_pixel: float) -> None:
        """A line where each stage begins, and its name where there is room."""
        ends = [*(stage.start for stage in self.stages[1:]), high_x]
        for stage, end in zip(self.stages, ends, strict=False):
            if stage.start >= high_x:
                continue
            if stage.start > 0:
                axes.axvline(stage.start, color=placeholder("muted"), linewidth=1, dashes=(2, 3), zorder=1)
            if (min(end, high_x) - stage.start) / per_pixel > len(stage.label) * TEXT * _GLYPH + 8:
                text = {"fontsize": TEXT, "color": placeholder("muted"), "annotation_clip": False}
                place = {"xycoords": ("data", "axes fraction"), "textcoords": "offset pixels"}
                axes.annotate(stage.label, (stage.start, 0.0), (5, 8), **place, **text)

    def _draw_labels(self, axes: Any, drawn: list[Thinned], high_x: float) -> None:
        """A label after the end of each line, moved apart where they would overlap."""
        heights = []
        low, high = axes.get_ylim()
        pixels = self.height - 72
        for points in drawn:
            finite = points.middle[~np.isnan(points.middle)]
            last = float(finite[-1]) if len(finite) else low
            if self.logarithmic:
                heights.append(math.log(max(last, low) / low) / math.log(high / low) * pixels)
            else:
                heights.append((last - low) / (high - low) * pixels)
        for line, at in zip(self.lines, apart(heights, TEXT + 4, 6, pixels - 6), strict=True):
            axes.annotate(
                self._label(line),
                (high_x, 0),
                (10, at),
                xycoords=("data", "axes fraction"),
                textcoords="offset pixels",
                fontsize=TEXT,
                color=placeholder(line.colour),
                va="center",
                annotation_clip=False,
            )


def _draw_line(axes: Any, line: Line, points: Thinned, high_x: float) -> None:
    colour = placeholder(line.colour)
    if line.across:
        finite = points.middle[~np.isnan(points.middle)]
        if len(finite):
            ends = (axes.get_xlim()[0], high_x)
            axes.plot(ends, (finite[-1], finite[-1]), color=colour, linewidth=1.5, linestyle=line.dash)
        return
    if points.has_band:
        axes.fill_between(points.x, points.low, points.high, color=colour, alpha=0.18, linewidth=0)
    lonely = np.isfinite(points.middle).sum() < 3
    marker = "o" if (line.marked and len(points.x) <= 40) or lonely else None
    axes.plot(
        points.x,
        points.middle,
        color=colour,
        linewidth=1.3 if line.colour == "train" else 2,
        linestyle=line.dash,
        marker=marker,
        markersize=4.5,
        markeredgewidth=0,
        solid_joinstyle="round",
    )


def _draw_gaps(axes: Any, drawn: list[Thinned], per_pixel: float) -> None:
    """Crosses on the axis where values are not finite, which have no height to be drawn at."""
    at = np.concatenate([points.x[np.isnan(points.middle)] for points in drawn] or [np.empty(0)])
    _, first = np.unique((at / (_CROSS * per_pixel)).astype(np.int64), return_index=True)
    style = {"marker": "x", "markersize": 6, "linestyle": "none", "color": placeholder("fault"), "zorder": 4}
    axes.plot(at[first], np.zeros(len(first)), transform=axes.get_xaxis_transform(), clip_on=False, **style)


def _bounds(arrays: list[Numbers]) -> tuple[float, float]:
    """Lowest and highest finite number; some interval where there is none, or only one."""
    every = np.concatenate(arrays) if arrays else np.empty(0)
    every = every[np.isfinite(every)]
    if not len(every):
        return 0.0, 1.0
    low, high = float(every.min()), float(every.max())
    return (low, high) if high > low else (low - (abs(low) or 1) / 10, low + (abs(low) or 1) / 10)


# What every drawing shares ------------------------------------------------------------------------


def new_figure(width: int, height: int, *, left: int, right: int, top: int, bottom: int) -> tuple[Any, Any]:
    """A figure and its axes, with margins in pixels; no frame, and lines across at the ticks."""
    from matplotlib.figure import Figure  # not pyplot, which has a global state and may need a display

    figure = Figure(figsize=(width / 72, height / 72), dpi=72)  # matplotlib writes SVG at 72 units an inch
    axes = figure.add_axes(
        (left / width, bottom / height, (width - left - right) / width, (height - top - bottom) / height)
    )
    figure.patch.set_visible(False)
    axes.patch.set_visible(False)
    for spine in axes.spines.values():
        spine.set_visible(False)
    axes.set_axisbelow(True)
    axes.grid(axis="y", color=placeholder("grid"), linewidth=1)
    axes.tick_params(length=0, pad=6, labelsize=TEXT, labelcolor=placeholder("muted"))
    return figure, axes


def ticks_x(axes: Any, low: float, high: float, value: Callable[[float], str], most: int, unit: float = 1.0) -> None:
    """At most `most` ticks of the x axis, at round multiples of `unit` in [low, high]."""
    from matplotlib.ticker import MaxNLocator

    round_numbers = MaxNLocator(nbins=most, steps=[1, 2, 2.5, 5, 10])
    found = np.asarray(round_numbers.tick_values(low / unit, high / unit)) * unit
    slack = 1e-9 * (high - low)
    ticks = [float(tick) for tick in found if low - slack <= tick <= high + slack]
    axes.set_xticks(ticks, [value(tick) for tick in ticks])


def titles(axes: Any, x_title: str, y_title: str, at: float) -> None:
    """Units of the axes: above the y axis, and below the x axis at the share `at` of its length."""
    text = {"fontsize": TEXT, "color": placeholder("muted"), "xycoords": "axes fraction"}
    offset = {"textcoords": "offset pixels"}
    axes.annotate(y_title, (0, 1), (-54, 12), ha="left", va="baseline", **offset, **text)
    axes.annotate(x_title, (at, 0), (0, -38), ha="right", va="baseline", **offset, **text)


def as_svg(figure: Any, name: str, title: str, summary: str) -> str:
    """The figure as an SVG element for an HTML page, with a title and a description."""
    from matplotlib import rc_context
    from matplotlib.text import Text

    written = io.StringIO()
    for text in figure.findobj(Text):  # names from files, in which "$" begins no formula
        text.set_parse_math(False)
        text.set_text(printable(text.get_text()))
    with rc_context({"svg.fonttype": "none", "svg.hashsalt": name}):
        empty = dict.fromkeys(("Date", "Creator", "Format", "Type"))
        figure.savefig(written, format="svg", metadata=empty)
    drawn = written.getvalue()
    (view_box,) = re.findall(r'viewBox="([^"]+)"', drawn)[:1]
    inside = drawn[drawn.index(">", drawn.index("<svg")) + 1 : drawn.rindex("</svg>")]
    inside = re.sub(r"<metadata>.*?</metadata>|<style.*?</style>", "", inside, flags=re.S)
    inside = re.sub(r'\bid="', f'id="{name}-', inside)
    inside = re.sub(r'url\(#|xlink:href="#', lambda found: f"{found[0].removeprefix('xlink:')}{name}-", inside)
    inside = re.sub(r" font-family: [^;]*;", "", inside)  # the page's own, in which the text is read
    inside = re.sub(r"\n\s*", "\n", inside)
    title, summary = (escape(printable(each)) for each in (title, summary))
    labels = f'<title id="{name}-title">{title}</title><desc id="{name}-desc">{summary}</desc>'
    opening = f'<svg viewBox="{view_box}" role="img" aria-labelledby="{name}-title {name}-desc">'
    return named(f"{opening}{labels}{inside}</svg>")
