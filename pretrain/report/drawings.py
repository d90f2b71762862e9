"""Drawings of a report that are no chart: contact maps, proteins as letters, rows of values and times.

In: what is drawn, a width in pixels. Out: SVG. Kept: nothing. A contact map has below the diagonal what touches in a
structure, above it what a model predicts; letters stand on the colour of the probability that a model gives them.
"""

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass
from html import escape
from typing import Any

import numpy as np

from pretrain.evaluate.results import ContactPairs
from pretrain.evaluate.scores import Prediction
from pretrain.report.chart import (
    CROSS,
    GLYPH,
    TEXT,
    as_svg,
    new_figure,
    placeholder,
    shortened,
    spread_labels,
    svg,
    ticks,
    write,
)
from pretrain.report.section import Drawing
from zymogen.console.safe_text import printable

_BAR = 44
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
        figure, axes = new_figure(width, _BAR * len(self.rows) + 52, left=_MARGIN, right=_MARGIN, top=6, bottom=46)
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


LEVELS = (0.1, 0.2, 0.4, 0.7)
"""Probabilities at which the colour of a residue changes."""
INK = ("muted", "ink", "ink", "paper", "paper")
"""Colour of a letter on each level."""
_TEN = 10
"""Residues in a block."""
_CELL, _BLOCK, _ROW, _LINE = 16, 170, 40, 26
"""Pixels from one letter to the next, from one block to the next, from one row to the next, and of a line of the
legend."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProteinLetters(Drawing):
    """The residues of a protein, or of a slice of one, in blocks of ten with the number of their first residue."""

    found: Prediction

    @property
    def summary(self) -> str:
        """The residues."""
        return f"Probability of each residue of {self.found.residues}"

    def draw(self, width: int) -> str:
        """The letters, below what their colours mean, as an SVG element of `width` pixels."""
        between = [f"{low} to {high}" for low, high in itertools.pairwise(LEVELS)]
        drawn, x, y = list[str](), 0.0, 0.0
        for level, meaning in enumerate([f"below {LEVELS[0]}", *between, f"{LEVELS[-1]} and more"]):
            length = _CELL + 6 + GLYPH * TEXT * len(meaning)
            x, y = (x, y) if x + length <= width else (0.0, y + _LINE)
            drawn += [_cell(x, y, "A", level, meaning), _text(x + _CELL + 6, y + 13, meaning, "muted")]
            x += length + 20
        blocks, top, first = max(1, (width + _CELL) // _BLOCK), y + _LINE + 12, self.found.first + 1
        for number, prob in enumerate(self.found.probabilities):
            block, place = divmod(number, _TEN)
            x, y = block % blocks * _BLOCK + place * _CELL, top + block // blocks * _ROW
            drawn += [_text(x, y + 8, f"{first + number}", "muted", 11)] * (place == 0)
            letter, level = self.found.residues[number], -1 if prob is None else sum(prob >= each for each in LEVELS)
            words = "not predicted" if prob is None else f"{prob:.2f}"
            drawn.append(_cell(x, y + 12, letter, level, f"{letter}{first + number}: {words}"))
        return svg(f"{self.name}-{width}", self.title, self.summary, (width, y + _ROW), "\n".join(drawn))


def _cell(x: float, y: float, letter: str, level: int, words: str) -> str:
    """A letter on its colour, none for a negative level, with words that a pointer shows."""
    box = f'<rect x="{x:g}" y="{y:g}" width="{_CELL - 1}" height="18" style="fill:var(--p{level})"/>' * (level >= 0)
    centred = _text(x + (_CELL - 1) / 2, y + 13.5, letter, INK[level] if level >= 0 else "muted", anchor="middle")
    return f"<g><title>{escape(printable(words))}</title>{box}{centred}</g>"


def _text(x: float, y: float, text: str, colour: str, size: float = TEXT, anchor: str = "start") -> str:
    style = f"font-size:{size:g}px;text-anchor:{anchor};fill:var(--{colour});stroke:none"
    return f'<text x="{x:g}" y="{y:g}" style="{style}">{escape(printable(text))}</text>'


@dataclass(frozen=True, slots=True, kw_only=True)
class ContactMap(Drawing):
    """The contacts of one chain."""

    pairs: ContactPairs

    @property
    def summary(self) -> str:
        """Numbers of pairs."""
        touching, predicted = self.pairs.touching, self.pairs.predicted
        return (
            f"{len(touching)} pairs of {self.pairs.residues} residues touch; of the {len(predicted)} most probable "
            f"pairs {len({*touching} & {*predicted})} do"
        )

    def draw(self, width: int) -> str:
        """The map as an SVG element of `width` pixels."""
        side, residues = min(width - 52, 460), self.pairs.residues
        figure, axes = new_figure(width, side + 52, left=40, right=width - 40 - side, top=6, bottom=46)
        axes.grid(visible=False)
        axes.set_xlim(0, residues)
        axes.set_ylim(residues, 0)
        axes.plot((0, residues), (0, residues), color=placeholder("grid"), linewidth=1)
        style = {"marker": "s", "markersize": max(1.5, side / residues), "markeredgewidth": 0, "linestyle": "none"}
        for i, j in self.pairs.touching:
            axes.plot(i + 0.5, j + 0.5, color=placeholder("muted"), **style)
        for i, j in self.pairs.predicted:
            colour = "blue" if (i, j) in self.pairs.touching else "orange"
            axes.plot(j + 0.5, i + 0.5, color=placeholder(colour), **style)
        ticks(axes.xaxis, "{:.0f}".format, 5)
        ticks(axes.yaxis, "{:.0f}".format, 5)
        axes.set_xlabel("residue", loc="left")
        return as_svg(figure, f"{self.name}-{width}", self.title, self.summary)
