"""Pictures beside a model card, which follow the light or dark setting of the reader's system.

In: drawings, a folder. Out: an SVG file there of each. Kept: nothing.
"""

import re
from collections.abc import Iterable
from pathlib import Path

from pretrain.report.chart import WIDTH, style_sheet
from pretrain.report.section import Drawing
from zymogen.console.safe_text import log, redacted

_BEYOND = 20
"""Pixels that the label of a tick may reach beyond a drawing."""


def card_pictures(drawings: Iterable[Drawing | None], folder: Path) -> list[str]:
    """Write the pictures beside a card, and return the names of their files.

    What prevents one, as where matplotlib is missing, costs a line.
    """
    found: list[str] = []
    try:
        for drawing in filter(None, drawings):
            name = f"{drawing.name}.svg"
            (folder / name).write_text(redacted(_as_file(drawing.draw())), encoding="utf-8")
            found.append(name)
    except Exception as error:
        log(f"the card's pictures were not drawn: {type(error).__name__}: {error}")
    return found


def _as_file(drawing: str) -> str:
    """A drawing as the content of a file, with its colours and its typeface.

    It ends where it ends, while a page shows labels that reach beyond its edge.
    """
    style = f"{style_sheet()}text{{font-family:system-ui,-apple-system,'Segoe UI',Roboto,Arial,sans-serif}}"
    width = WIDTH + 2 * _BEYOND
    opening = f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" viewBox="{-_BEYOND} 0 {width} '
    whole = re.sub(r'<svg viewBox="0 0 [^ ]+ ', opening, drawing, count=1)
    return whole.replace(">", f"><style>{style}</style>", 1) + "\n"
