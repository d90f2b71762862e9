"""The recipe of a look as a text: TOML with a comment on every value; and where it may be written.

In: sections of choices. Out: text, a file. Kept: the recipe, whose first line has the hash of the rest, so that a file
that was edited, or is somebody else's, is never written over.
"""

import hashlib
import re
from collections.abc import Sequence
from pathlib import Path

from pretrain.proposal.recipe_text import Table, commented
from zymogen.files.durable import write_atomic

_FIRST = re.compile(r"# Written by python -m finetune\.look \(([0-9a-f]{16})\)")


def recipe_text(before: Sequence[str], tables: Sequence[Table]) -> str:
    """The recipe.

    Args:
        before: paragraphs at its beginning.
        tables: of the recipe, in their order.
    """
    rest = commented([[paragraph] for paragraph in before], tables)
    return f"# Written by python -m finetune.look ({_hash(rest)})\n{rest}"


def require_own(path: Path) -> None:
    """Refuse a place where a file is that no look has written, or that was edited since.

    Raises:
        ValueError: such a file is there.
    """
    if not path.exists():
        return
    try:
        first, _, rest = path.read_text("utf-8").partition("\n")
    except (OSError, UnicodeDecodeError):
        first = rest = ""
    found = _FIRST.fullmatch(first)
    if found is None or found[1] != _hash(rest):
        raise ValueError(f"{path}: is there already, and was not written by this command alone; name another with -o")


def write(path: Path, text: str) -> None:
    """Write the recipe, whole or not at all."""
    require_own(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(path, text)


def _hash(text: str) -> str:
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()
