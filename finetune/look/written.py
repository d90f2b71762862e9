"""The recipe of a look as a text: TOML with a comment on every value; and where it may be written.

In: sections of choices. Out: text, a file. Kept: the recipe, whose first line has the hash of the rest, so that a file
that was edited, or is somebody else's, is never written over.
"""

import hashlib
import re
import textwrap
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from data.durable import write_whole
from data.safe_text import printable
from pretrain.proposal.reasons import Choice
from pretrain.proposal.written import toml_value

_WIDTH = 110
_FIRST = re.compile(r"# Written by python -m finetune\.look \(([0-9a-f]{16})\)")


class Part(NamedTuple):
    """One table of the recipe."""

    head: str
    """Such as ``[data]`` or ``[[tasks]]``."""
    comment: str
    """Above the table; empty for none."""
    choices: Sequence[Choice]


def recipe_text(before: Sequence[str], parts: Sequence[Part]) -> str:
    """The recipe.

    Args:
        before: paragraphs at its beginning.
        parts: its tables in their order.
    """
    lines = [line for paragraph in before for line in (*_comment(paragraph), "#")][:-1]
    for head, comment, choices in parts:
        lines += ["", *_comment(_sentence(comment)), head]
        for choice in choices:
            lines += _comment(_sentence(choice.reason))
            lines.append(f"{choice.name} = {toml_value(choice.value)}")
    rest = "\n".join(lines) + "\n"
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
    write_whole(path, text)


def _hash(text: str) -> str:
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}." if text else ""


def _comment(text: str) -> Iterator[str]:
    text = printable(text)
    if text:
        yield from textwrap.wrap(
            text, _WIDTH, initial_indent="# ", subsequent_indent="# ", break_on_hyphens=False, break_long_words=False
        )
