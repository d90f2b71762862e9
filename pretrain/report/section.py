"""The parts of a page: its words, tables and drawings.

In: nothing; these are the types. Kept: nothing.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

NOT_MEASURED = "not measured"


@dataclass(frozen=True, slots=True, kw_only=True)
class Drawing(ABC):
    """A chart or another picture."""

    name: str
    """Letters and hyphens; begins the ids of the drawing's elements."""
    title: str
    note: str = ""

    @property
    def summary(self) -> str:
        """Everything that it shows, for readers who do not see it; empty where its text has it."""
        return ""

    @abstractmethod
    def draw(self) -> str:
        """The drawing as an element of an HTML page."""


@dataclass(frozen=True, slots=True)
class ReportTable:
    """A table; on a phone four short columns fit side by side."""

    title: str
    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    note: str = ""


@dataclass(frozen=True, slots=True)
class ReportSection:
    """A part of the page under a heading."""

    title: str
    paragraphs: tuple[str, ...] = ()
    sheets: Sequence[ReportTable] = ()
    drawings: Sequence[Drawing | None] = ()
    """None for one of what the run does not have."""
    settings: Sequence[tuple[str, Sequence[tuple[str, str]]]] = ()
    """Names and values under a title each."""
    note: str = ""

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to show under the heading."""
        return not any((self.paragraphs, self.sheets, self.settings, any(self.drawings)))


@dataclass(frozen=True, slots=True)
class ReportContent:
    """What a job puts on its page."""

    name: str
    subtitle: str
    judged: tuple[str, ...]
    """What the run is worth, in sentences."""
    keys: tuple[tuple[str, str, str], ...]
    """Numbers that a reader looks for first: name, value and a remark."""
    sections: tuple[ReportSection, ...]
    drawn_by: str
    """The command that draws the page."""


def source_names(sources: Iterable[str]) -> str:
    """Files and URLs for readers who have other folders: the last part of each, of a URL also the host."""
    return ", ".join(map(_source_name, sources))


def _source_name(source: str) -> str:
    if "://" not in source:
        return source if source.startswith("synthetic:") else Path(source).name
    parts = urlsplit(source)
    host = parts.netloc.rpartition("@")[2]
    name = Path(parts.path or host).name
    return f"{'datasets' if parts.scheme == 'datasets' else host}: {name}".strip(": ")
