"""The last line of every benchmark: one JSON object that says what was measured, on what, and whether it holds.

In: rows. Out: a table and the JSON line on standard output. Kept: nothing.
"""

import json
import os
import platform
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from pretrain.run_directory import versions


@dataclass(frozen=True, slots=True)
class Row:
    """One comparison; `ratio` is ours over theirs, None where it was not measured."""

    work: str
    against: str
    ratio: float | None
    bar: float
    better: Literal["higher", "lower"]

    @property
    def holds(self) -> bool | None:
        """Whether the ratio reaches the bar."""
        if self.ratio is None:
            return None
        return self.ratio >= self.bar if self.better == "higher" else self.ratio <= self.bar


def report(benchmark: str, rows: Sequence[Row]) -> None:
    """Print the table and the JSON line."""
    width = max(len(row.work) for row in rows)
    for row in rows:
        sign = ">=" if row.better == "higher" else "<="
        shown = "not measured" if row.ratio is None else f"{row.ratio:.2f} (bar {sign} {row.bar:g})"
        print(f"{row.work:{width}}  against {row.against}: {shown}")
    content = {
        "benchmark": benchmark,
        "machine": f"{_processor()}, {os.cpu_count()} cores",
        "versions": versions(),
        "rows": [{**asdict(row), "holds": row.holds} for row in rows],
    }
    print(json.dumps(content))


def _processor() -> str:
    facts = Path("/proc/cpuinfo")
    names = [line for line in facts.read_text().splitlines() if line.startswith("model name")] if facts.exists() else []
    return names[0].partition(": ")[2] if names else platform.processor()
