"""JSON lines: metrics.jsonl, attempts.jsonl and every rank's own file.

In: dictionaries of numbers and short strings. Out: one line each, appended in one write, so that a killed process
leaves at most one torn last line, which readers skip.
"""

import json
import os
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, BinaryIO

_REMOVALS = 100
"""How often a folder may vanish before a line is in it. Each rank that ends removes the folder of ranks if it can, the
last one with success (`pretrain.recovery.watchdog`), and another may write its error then."""


def now() -> str:
    """UTC time, ISO 8601, to the millisecond."""
    return datetime.now(UTC).isoformat(timespec="milliseconds")


def append(path: Path, record: dict[str, Any]) -> None:
    """Add one line; a torn line before it is closed first. Numbers that JSON does not have become null."""
    line = json.dumps(_finite(record), separators=(", ", ": ")) + "\n"
    with _opened(path) as file:
        if file.tell():
            file.seek(-1, os.SEEK_END)
            if file.read(1) != b"\n":
                line = "\n" + line
        file.write(line.encode())


def _opened(path: Path) -> BinaryIO:
    """The file, in a folder that is made where it is missing; some other rank may remove it again while it is empty."""
    for _ in range(_REMOVALS):
        with suppress(FileNotFoundError):
            path.parent.mkdir(parents=True, exist_ok=True)
            return path.open("ab+")
    return path.open("ab+")


def read(path: Path) -> Iterator[dict[str, Any]]:
    """Every whole line of a file that may not exist; torn lines are left out."""
    if not path.exists():
        return
    with path.open("rb") as file:
        for line in file:
            try:
                yield json.loads(line)
            except ValueError:
                continue


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, float) and value - value != 0.0:  # inf and nan are no JSON
        return None
    return value
