"""A protein as letters, each on the colour of the probability that a model gives it.

In: a `Prediction`, a width in pixels. Out: SVG. Kept: nothing.
"""

import itertools
from dataclasses import dataclass
from html import escape

from pretrain.evaluation.scores import Prediction
from pretrain.report.chart import GLYPH, TEXT, svg
from pretrain.report.section import Drawing
from zymogen.console.safe_text import printable

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
