"""Pictures of a run as files of their own, for a README or a model card.

In: a run directory, a folder. Out: loss.svg and protein.svg there, or the pictures of a card, which follow the light or
dark setting of the reader's system. Kept: nothing; a file of that name that this module did not write stays.
"""

import re
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from pretrain.evaluate.scores import kind_of
from pretrain.report import charts, page_text
from pretrain.report.chart import style_sheet
from pretrain.report.history import read_history
from pretrain.report.page import require_ours
from pretrain.report.section import Drawing
from zymogen.console.safe_text import log, redacted
from zymogen.files.durable import replacing_file

MARK = "zymogen.picture/1"
_WIDTH = 840
_BEYOND = 20
"""Pixels that the label of a tick may reach beyond a drawing."""


def write_pictures(root: Path, folder: Path) -> list[Path]:
    """Draw the loss of a run, and the first protein of its predictions.

    Raises:
        ValueError: it is no run directory, or has nothing to draw, or the folder holds other files of these names.
    """
    history = read_history(root)
    loss, proteins = charts.loss_figure(history), page_text.proteins(history)
    if loss is None or not proteins:
        raise ValueError(f"{root} has no {'steps' if loss is None else 'predictions'} yet; train it to its end")
    title = f"Probability of each residue of a {kind_of(history.held_out)}"
    drawings = {"loss.svg": loss, "protein.svg": replace(proteins[0], name="protein", title=title)}
    for name in drawings:
        require_ours(folder / name, MARK, "picture")
    folder.mkdir(parents=True, exist_ok=True)
    for name, drawing in drawings.items():
        with replacing_file(folder / name, "get the right to write there") as new:
            new.write_text(_alone(drawing.draw(_WIDTH)), encoding="utf-8")
    return [folder / name for name in drawings]


def card_pictures(drawings: Iterable[Drawing | None], folder: Path) -> list[str]:
    """Write the pictures beside a card, and return the names of their files.

    What prevents one, as where matplotlib is missing, costs a line.
    """
    found: list[str] = []
    try:
        for drawing in filter(None, drawings):
            name = f"{drawing.name}.svg"
            (folder / name).write_text(redacted(drawing_file(drawing)), encoding="utf-8")
            found.append(name)
    except Exception as error:
        log(f"the card's pictures were not drawn: {type(error).__name__}: {error}")
    return found


def drawing_file(drawing: Drawing) -> str:
    """A drawing as the content of a file, which ends where it ends: a page shows labels that reach beyond its edge."""
    inside = drawing.draw(_WIDTH - 2 * _BEYOND)
    return _alone(re.sub(r'viewBox="0 0 [^ ]+ ', f'viewBox="{-_BEYOND} 0 {_WIDTH} ', inside, count=1))


def _alone(drawing: str) -> str:
    """A drawing of a page as a file: with its colours and its typeface."""
    style = f"{style_sheet()}text{{font-family:system-ui,-apple-system,'Segoe UI',Roboto,Arial,sans-serif}}"
    opening = drawing.replace("<svg ", '<svg xmlns="http://www.w3.org/2000/svg" ', 1)
    return opening.replace(">", f"><!-- {MARK} --><style>{style}</style>", 1) + "\n"
