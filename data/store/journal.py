"""The journal of an unfinished build: how much of each file of the store is valid, and where reading continues.

In: the folder of a store. Out: `BuildJournal`. Kept: progress.json, which is written before any other file of a build
and replaced whole at every commit; .zymogen-failed.json, the reason why a build that others follow has ended.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

from data.sources.block import START, SourcePosition
from data.store import derived
from data.store.token_store import FORMAT, REJECTED, StoreCounts, is_of_a_store
from zymogen.console.safe_text import redacted
from zymogen.files.durable import write_atomic

JOURNAL, FAILED = "progress.json", ".zymogen-failed.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildJournal:
    """What is committed, that is, safely on disk."""

    key: str
    """Hash of the sources' stamps and of the settings that decide the bytes."""
    counts: StoreCounts = field(default=StoreCounts())
    num_read: int = 0
    """Number of records that were read, those that were left out included."""
    rejected: Mapping[str, int] = field(default_factory=dict)
    """How many of them were left out, by kind (`data.sources.block.Kind`)."""
    rejected_bytes: int = 0
    """Bytes of rejected.jsonl."""
    unknown_letters: Mapping[str, int] = field(default_factory=dict)
    source: int = 0
    """Number of the source that is being read, from 0."""
    position: SourcePosition = START
    """Where that source continues."""
    bytes_read: int = 0
    """Stored bytes of that source before `position`; only the progress line uses them."""

    def file_sizes(self) -> dict[str, int]:
        """Bytes of each file, rejected.jsonl included."""
        return {**self.counts.file_sizes(), REJECTED: self.rejected_bytes}


def read_journal(folder: Path) -> BuildJournal | None:
    """The journal of an unfinished build; None if the folder has none.

    Raises:
        ValueError: it is damaged, or of another program.
    """
    path = folder / JOURNAL
    try:
        raw = path.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        return None
    if not is_of_a_store(raw):
        raise ValueError(f"{path} is of another program, or damaged beyond reading; choose another folder")
    try:
        content = json.loads(raw)
        if content.pop("format") != FORMAT:
            raise ValueError
        content["counts"], content["position"] = StoreCounts(*content["counts"]), SourcePosition(*content["position"])
        return BuildJournal(**content)
    except (ValueError, KeyError, TypeError, AttributeError):
        raise ValueError(f"{path} is damaged, or of another version; delete the folder, it is built again") from None


def write_journal(folder: Path, journal: BuildJournal) -> None:
    """Replace the journal; it is on disk when this returns."""
    write_atomic(folder / JOURNAL, json.dumps({"format": FORMAT, **asdict(journal)}))


def failure(folder: Path) -> str | None:
    """Why the last build that others followed has failed; None if it has not."""
    path = folder / FAILED
    return str(derived.read_json(path, ["error"], path)["error"]) if path.exists() else None


def write_failure(folder: Path, message: str) -> None:
    """Write why a build has failed, for the processes that wait for its store."""
    folder.mkdir(parents=True, exist_ok=True)
    write_atomic(folder / FAILED, json.dumps({"error": redacted(message)}))
