"""Proteins as coloured letters: a drawing of the predictions, for where there is no page.

In: cells, a width in pixels. Out: SVG. Kept: nothing.
"""

from collections.abc import Sequence
from typing import Any

from pretrain.report.chart import TEXT, as_svg, new_figure
from pretrain.report.palette import placeholder

TEN = 10
"""Residues in a block."""
_CELL, _GAP, _ROW, _TOP = 16, 10, 40, 66
_INK = ("muted", "ink", "ink", "paper", "paper")
"""Colour of a letter on each level, as in page.css."""


def draw_letters(
    name: str,
    title: str,
    first: int,
    cells: Sequence[tuple[str, int]],
    legend: Sequence[str],
    width: int,
    summary: str = "",
) -> str:
    """Letters on the colour of their level, in blocks of ten with the number of their first residue.

    Args:
        name: letters and hyphens; begins the ids of the drawing's elements.
        title: stands above.
        first: number of the first residue.
        cells: each letter with its level from 0; -1 for none.
        legend: what each level means.
        width: of the drawing, in pixels.
        summary: what it shows, for readers who do not see it.
    """
    block = TEN * _CELL + _GAP
    a_row = max(1, (width + _GAP) // block)
    rows = -(-len(cells) // (TEN * a_row))
    height = _TOP + rows * _ROW
    figure, axes = new_figure(width, height, left=0, right=0, top=0, bottom=0)
    axes.set_xlim(0, width)
    axes.set_ylim(height, 0)
    axes.set_xticks([])
    axes.set_yticks([])
    axes.text(0, 14, title, fontsize=TEXT, fontweight="bold", color=placeholder("ink"))
    at = 0.0
    for level, meaning in enumerate(legend):
        _cell(axes, at, 28, "A", level)
        axes.text(at + _CELL + 6, 40, meaning, fontsize=TEXT, color=placeholder("muted"))
        at += _CELL + 26 + 0.6 * TEXT * len(meaning)
    for number, (letter, level) in enumerate(cells):
        row, place = divmod(number, TEN * a_row)
        x, y = place // TEN * block + place % TEN * _CELL, _TOP + row * _ROW
        if place % TEN == 0:
            axes.text(x, y + 8, str(first + number), fontsize=11, color=placeholder("muted"))
        _cell(axes, x, y + 12, letter, level)
    return as_svg(figure, f"{name}-{width}", title, summary)


def _cell(axes: Any, x: float, y: float, letter: str, level: int) -> None:
    from matplotlib.patches import Rectangle

    if level >= 0:
        axes.add_patch(Rectangle((x, y), _CELL - 1, 18, color=placeholder(f"p{level}"), linewidth=0))
    ink = placeholder(_INK[level] if level >= 0 else "muted")
    axes.text(x + (_CELL - 1) / 2, y + 13.5, letter, fontsize=TEXT, color=ink, ha="center")
