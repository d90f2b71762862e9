"""The last line of every benchmark: one JSON object with what was measured, on which machine, and whether it holds.

In: rows. Out: a table and the JSON line on standard output. Kept: with `--record`, the line in `benchmarks/results`.
"""

import json
import os
import platform
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from benchmarks.results.record import Provenance, write
from zymogen.trainer.run.versions import versions


@dataclass(frozen=True, slots=True)
class Row:
    """One comparison; `ratio` is ours over theirs, None where it was not measured."""

    work: str
    against: str
    ratio: float | None
    bar: float
    better: Literal["higher", "lower"]
    failed: bool = False
    """Whether measuring it raised an error, so that the bar does not hold although there is no ratio."""

    @property
    def holds(self) -> bool | None:
        """Whether the ratio reaches the bar; None where it was not measured."""
        if self.ratio is None:
            return False if self.failed else None
        return self.ratio >= self.bar if self.better == "higher" else self.ratio <= self.bar


def report(
    benchmark: str,
    rows: Sequence[Row],
    machine: str = "",
    others: Mapping[str, object] | None = None,
    record: Provenance | None = None,
) -> None:
    """Print the table and the JSON line.

    Args:
        benchmark: its name.
        rows: what is compared.
        machine: what the machine has besides the processor.
        others: figures without a bar.
        record: provenance of a result that is recorded; None if it is only printed.
    """
    width = max((len(row.work) for row in rows), default=0)
    for row in rows:
        sign = ">=" if row.better == "higher" else "<="
        lacking = "failed" if row.failed else "not measured"
        digits = ".2f" if abs(row.ratio or 1) >= 0.01 else ".1e"
        shown = lacking if row.ratio is None else f"{row.ratio:{digits}} (bar {sign} {row.bar:g})"
        print(f"{row.work:{width}}  against {row.against}: {shown}")
    judged = [{**asdict(row), "holds": row.holds} for row in rows]
    last_line(benchmark, {"rows": judged, **({"others": others} if others else {})}, machine, record)


def last_line(
    benchmark: str, measured: Mapping[str, object], machine: str = "", record: Provenance | None = None
) -> None:
    """Print a benchmark's one JSON object, and write it to its file if it is recorded."""
    where = ", ".join(filter(None, [machine, processor()]))
    content = {"benchmark": benchmark, "machine": where, "versions": versions(), **measured}
    print(json.dumps(content))
    if record:
        write(benchmark, content, record)


def processor() -> str:
    """Name and cores of the processor."""
    facts = Path("/proc/cpuinfo")
    names = [line for line in facts.read_text().splitlines() if line.startswith("model name")] if facts.exists() else []
    name = names[0].partition(": ")[2] if names else platform.processor()
    return f"{name}, {os.cpu_count()} cores"
