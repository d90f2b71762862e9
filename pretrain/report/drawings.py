"""Drawings of a report that are no chart: rows of values and times, proteins as letters.

In: what is drawn. Out: SVG, of a protein HTML. Kept: nothing.
"""

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass
from html import escape
from typing import Any

import numpy as np

from pretrain.evaluate.scores import Prediction
from pretrain.report.chart import (
    CROSS,
    GLYPH,
    PLACEHOLDERS,
    TEXT,
    WIDTH,
    Plot,
    new_axes,
    shortened,
    spread,
    ticks,
    write,
)
from pretrain.report.section import Drawing
from zymogen.console.safe_text import printable

_BAR = 44
"""Height of a row in pixels: a line of text, and the marks below it."""
_MARGIN = 12


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
class IntervalPlot(Plot):
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

    def figure(self) -> Any:
        """The rows as a figure of matplotlib."""
        inside = WIDTH - 2 * _MARGIN
        axes = new_axes(_BAR * len(self.rows) + 52, left=_MARGIN, right=_MARGIN, top=6, bottom=46)
        axes.set_yticks([])
        axes.grid(axis="x")
        drawn = [n for row in self.rows for n in (*sum(row.bars, ()), *row.points, *row.crosses) if math.isfinite(n)]
        per_pixel = float(np.ptp(drawn or [0.0])) / inside or 1.0
        for number, row in enumerate(self.rows):
            at, value = number + 0.68, self._value(row)
            place: dict[str, Any] = {"va": "center", "xycoords": ("axes fraction", "data")}
            label = shortened(row.label, inside - (len(value) + 1) * GLYPH * TEXT)
            write(axes, label, (0, number + 0.28), (0, 0), color=PLACEHOLDERS["ink"], **place)
            write(axes, value, (1, number + 0.28), (0, 0), ha="right", color=PLACEHOLDERS["blue"], **place)
            for low, high in row.bars:
                ends = low, max(high, low + 2 * per_pixel)  # a short one is seen too
                axes.plot(ends, (at, at), color=PLACEHOLDERS["blue"], linewidth=2, solid_capstyle="butt")
            for points, gap, colour, style in (
                (row.points, 1, "train", {"marker": "|", "markersize": 10}),
                ([math.nan if row.value is None else row.value], 1, "blue", {"marker": "o", "markersize": 6}),
                ([row.baseline], 1, "ink", {"marker": "|", "markersize": 14, "mew": 2}),
                (row.crosses, CROSS, "fault", {"marker": "x", "markersize": 7, "mew": 1.6}),
            ):
                kept = spread(np.array(points), gap * per_pixel)
                axes.plot(kept, [at] * len(kept), color=PLACEHOLDERS[colour], linestyle="none", **style)
        axes.margins(x=0.06)
        axes.set_ylim(len(self.rows), 0)
        ticks(axes.xaxis, self.number, max(2, inside // 80))
        axes.set_xlabel(self.x_title)
        return axes.figure

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


@dataclass(frozen=True, slots=True, kw_only=True)
class ProteinLetters(Drawing):
    """The residues of a protein, or of a slice of one, in blocks of ten with the number of their first residue."""

    found: Prediction

    def draw(self) -> str:
        """The letters as HTML, below what their colours mean."""
        between = [f"{low} to {high}" for low, high in itertools.pairwise(LEVELS)]
        meanings = [f"below {LEVELS[0]}", *between, f"{LEVELS[-1]} and more"]
        key = "".join(f"<li>{_letter('A', level, '')} {meaning}</li>" for level, meaning in enumerate(meanings))
        letters, first = list[str](), self.found.first + 1
        known = zip(self.found.residues, self.found.probabilities, strict=True)
        for number, (residue, prob) in enumerate(known, first):
            level = None if prob is None else sum(prob >= each for each in LEVELS)
            words = "not predicted" if prob is None else f"{prob:.2f}"
            letters.append(_letter(residue, level, f"{residue}{number}: {words}"))
        blocks = ("".join(letters[at : at + _TEN]) for at in range(0, len(letters), _TEN))
        numbered = (f"<li><small>{first + _TEN * at}</small>{block}</li>" for at, block in enumerate(blocks))
        return f"<ul>{key}</ul><ol>{''.join(numbered)}</ol>"


def _letter(residue: str, level: int | None, title: str) -> str:
    """A residue on the colour of its level, with a title that a pointer shows."""
    style = "" if level is None else f' style="background:var(--p{level});color:var(--{INK[level]})"'
    return f'<b title="{escape(printable(title))}"{style}>{escape(printable(residue))}</b>'
