"""JSON lines: metrics.jsonl, attempts.jsonl and every rank's own file.

In: dictionaries of numbers and short strings. Out: one line each, appended in one write, so that a killed process
leaves at most one torn last line, which readers skip.
"""

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from zymogen.console.safe_text import redacted
from zymogen.settings.json_file import plain


def now() -> str:
    """UTC time, ISO 8601, to the millisecond."""
    return datetime.now(UTC).isoformat(timespec="milliseconds")


def seconds(time: str) -> float:
    """Seconds since 1970 of a time that `now` gave."""
    return datetime.fromisoformat(time).timestamp()


def append(path: Path, record: dict[str, Any]) -> None:
    """Add one line, without secrets; a torn line before it is closed first. Numbers that JSON lacks become null."""
    line = json.dumps(plain(record, redacted), separators=(", ", ": ")) + "\n"
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab+") as file:
        if file.tell():
            file.seek(-1, os.SEEK_END)
            if file.read(1) != b"\n":
                line = "\n" + line
        file.write(line.encode())


def read(path: Path) -> Iterator[dict[str, Any]]:
    """Every whole line of a file that may not exist; torn lines, and what is no object, are left out."""
    if not path.exists():
        return
    with path.open("rb") as file:
        for line in file:
            with suppress(ValueError):
                if isinstance(record := json.loads(line), dict):
                    yield record


def has_time(line: Mapping[str, Any]) -> bool:
    """Whether a line says when it was written, as all of ours do."""
    with suppress(KeyError, TypeError, ValueError):
        return seconds(line["time"]) > 0
    return False
