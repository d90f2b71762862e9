"""What another job than pretraining puts on the page: its own words, tables and drawings.

In: nothing; these are the types. Kept: nothing.
"""

from dataclasses import dataclass, field
from typing import Protocol


class Drawing(Protocol):
    """A chart or another picture."""

    @property
    def name(self) -> str: ...  # noqa: D102
    @property
    def title(self) -> str: ...  # noqa: D102
    @property
    def note(self) -> str: ...  # noqa: D102
    @property
    def summary(self) -> str: ...  # noqa: D102
    def draw(self, width: int) -> str:
        """An SVG element of `width` pixels."""


@dataclass(frozen=True, slots=True)
class Key:
    """A number that a reader looks for first."""

    name: str
    value: str
    remark: str = ""


@dataclass(frozen=True, slots=True)
class Sheet:
    """A table; on a phone four short columns fit side by side."""

    title: str
    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    note: str = ""


@dataclass(frozen=True, slots=True)
class Section:
    """A part of the page under a heading."""

    title: str
    paragraphs: tuple[str, ...] = ()
    sheets: tuple[Sheet, ...] = ()
    drawings: tuple[Drawing, ...] = ()
    note: str = ""


@dataclass(frozen=True, slots=True)
class Content:
    """What stands in the place of pretraining's own words and charts."""

    name: str
    subtitle: str
    judged: tuple[str, ...]
    """What the run is worth, in sentences."""
    keys: tuple[Key, ...]
    sections: tuple[Section, ...]
    learning: tuple[Drawing, ...] = field(default=())
    """Charts of how it learned, side by side."""
    drawn_by: str = ""
    """The command that draws the page."""
