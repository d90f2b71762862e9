"""What `benchmarks.gpu` has found so far, on disk after every row: a Markdown table and a JSON file.

In: the rows that are wanted, then what each found. Out: `results.md` and `results.json`, each whole at any moment,
because they are written under another name and renamed. Kept: all rows.

A row is *waiting*, *running*, then *measured*, *not measured* or *failed*. One check may give several rows, which take
its place as they come.
"""

import json
import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from benchmarks.report import Row
from zymogen.files.durable import write_atomic

Status = Literal["waiting", "running", "measured", "not measured", "failed"]


RESULTS = ("results.md", "results.json")


@dataclass(frozen=True, slots=True)
class Bar:
    """What a figure must reach."""

    value: float
    better: Literal["higher", "lower"]
    against: str
    """What the figure is a ratio to."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One figure of a check."""

    what: str
    """Follows the check's name; empty where the check has only one figure."""
    value: float | str | None
    """None where it could not be measured, and then `note` says why."""
    unit: str = ""
    note: str = ""
    judged: bool = False
    """Whether the check's bar is for this figure."""


@dataclass(frozen=True, slots=True)
class Table:
    """What does not fit into a figure; it is printed below the rows."""

    title: str
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


@dataclass(frozen=True, slots=True)
class Line:
    """One row of the results."""

    check: str
    row: str
    status: Status = "waiting"
    value: float | str | None = None
    unit: str = ""
    bar: Bar | None = None
    note: str = ""
    seconds: float | None = None
    """From the start of the check to this row; None while it is running."""
    must_end: float | None = None
    """When the watching process ends a running row, in seconds since the epoch."""

    @property
    def holds(self) -> bool | None:
        """Whether the bar is reached; a row that failed does not hold, one that was not measured says nothing."""
        if self.status == "measured" and self.bar is not None:
            return bool(self.as_row().holds)
        return False if self.status == "failed" else None

    def as_row(self) -> Row:
        """This row in the form of every benchmark's report; only for rows with a bar."""
        assert self.bar is not None
        value = self.value if isinstance(self.value, float) else None
        return Row(self.row, self.bar.against, value, self.bar.value, self.bar.better, failed=self.status == "failed")


@dataclass(slots=True)
class Results:
    """All rows, and the files that hold them."""

    folder: Path
    about: dict[str, Any] = field(default_factory=dict)
    """Machine, versions, date, budget."""
    lines: list[Line] = field(default_factory=list)
    tables: list[Table] = field(default_factory=list)

    @classmethod
    def load(cls, folder: Path) -> "Results":
        """What another process has written."""
        content = json.loads((folder / "results.json").read_text("utf-8"))
        lines = [_line(row) for row in content["rows"]]
        tables = [Table(t["title"], tuple(t["header"]), tuple(map(tuple, t["rows"]))) for t in content["tables"]]
        return cls(folder, content["about"], lines, tables)

    def plan(self, checks: Sequence[tuple[str, Bar | None]]) -> None:
        """Begin: every check waits."""
        self.lines = [Line(name, name, bar=bar) for name, bar in checks]
        self.write()

    def waiting(self) -> set[str]:
        """Checks that have not begun."""
        return {line.check for line in self.lines if line.status == "waiting"}

    def running(self) -> Line | None:
        """The row of the check that has begun and not ended."""
        return next((line for line in self.lines if line.status == "running"), None)

    def start(self, check: str, must_end: float) -> None:
        """A check begins."""
        self._replace(check, "waiting", status="running", must_end=must_end, note="not finished when this was written")

    def add(self, check: str, found: Finding | Table, seconds: float) -> None:
        """A running check found something."""
        if isinstance(found, Table):
            self.tables.append(found)
            self.write()
            return
        index = self._index(check, "running")
        bar = self.lines[index].bar if found.judged else None
        row = f"{check}: {found.what}" if found.what else check
        value, status, note = found.value, "measured" if found.value is not None else "not measured", found.note
        if isinstance(value, float) and not math.isfinite(value):
            value, status, note = None, "failed", f"{value}; {note}"
        line = Line(check, row, status, value, found.unit, bar, note, seconds)  # type: ignore[arg-type]
        self.lines.insert(index, line)
        print(line_of_text(line), flush=True)
        self.write()

    def finish(self, check: str) -> None:
        """A check ended well; its rows take its place."""
        del self.lines[self._index(check, "running")]
        self.write()

    def end(self, check: str, status: Status, note: str, seconds: float | None = None) -> None:
        """A check ended otherwise: `not measured` or `failed`, before it began or while it was running."""
        running = self.running()
        was: Status = "running" if running and running.check == check else "waiting"
        self._replace(check, was, status=status, note=note, seconds=seconds, must_end=None)
        print(line_of_text(next(x for x in self.lines if x.check == check and x.status == status)), flush=True)

    def value(self, row: str) -> float | None:
        """A figure that was found before."""
        return next((x.value for x in self.lines if x.row == row and isinstance(x.value, float)), None)

    def judged(self) -> Iterator[Row]:
        """Rows with a bar, for the report."""
        return (line.as_row() for line in self.lines if line.bar is not None)

    def write(self) -> None:
        """Both files, each by a rename."""
        rows = [{**asdict(line), "holds": line.holds} for line in self.lines]
        content = {"about": self.about, "rows": rows, "tables": [asdict(table) for table in self.tables]}
        self.folder.mkdir(parents=True, exist_ok=True)
        write_atomic(self.folder / "results.json", json.dumps(content, indent=1, allow_nan=False) + "\n")
        write_atomic(self.folder / "results.md", self.markdown())

    def markdown(self) -> str:
        """The table of rows, and below it the checks' other tables."""
        about = [f"{name}: {value}" for name, value in self.about.items()]
        blocks = ["# GPU checks and benchmarks", "\n".join(f"- {_cell(line)}" for line in about)]
        holds = {True: "yes", False: "**no**", None: ""}
        cells = [(line.row, shown(line), _bar(line), holds[line.holds], line.note) for line in self.lines]
        blocks.append(_table(("row", "value", "bar", "holds", "note"), cells))
        for table in self.tables:
            blocks += [f"## {table.title}", _table(table.header, table.rows)]
        return "\n\n".join(blocks) + "\n"

    def _index(self, check: str, status: Status) -> int:
        return next(i for i, line in enumerate(self.lines) if line.check == check and line.status == status)

    def _replace(self, check: str, was: Status, **changes: Any) -> None:
        index = self._index(check, was)
        self.lines[index] = replace(self.lines[index], **changes)
        self.write()


def shown(line: Line) -> str:
    """Value and unit."""
    if line.status != "measured":
        return line.status
    if isinstance(line.value, str):
        return line.value
    assert line.value is not None
    number = f"{line.value:,.0f}" if abs(line.value) >= 1000 else f"{line.value:.3g}"
    return f"{number} {line.unit}".strip()


def line_of_text(line: Line) -> str:
    """A row for the console."""
    holds = {True: ", holds", False: ", DOES NOT HOLD", None: ""}[line.holds]
    bar = f" ({_bar(line)}{holds})" if line.bar else ""
    return f"{time.strftime('%H:%M:%S')} {line.row}: {shown(line)}{bar}{'; ' if line.note else ''}{line.note}"


def _bar(line: Line) -> str:
    if line.bar is None:
        return ""
    return f"{'>=' if line.bar.better == 'higher' else '<='} {line.bar.value:g}, {line.bar.against}"


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(map(_cell, line))} |" for line in lines)


def _cell(text: str) -> str:
    return " ".join(text.replace("|", "\\|").split())


def _line(content: dict[str, Any]) -> Line:
    del content["holds"]
    return Line(**{**content, "bar": Bar(**content["bar"]) if content["bar"] else None})


def is_written_here(folder: Path) -> bool:
    """Whether the results in a folder were written by an earlier call, so that they may be replaced."""
    try:
        return json.loads((folder / "results.json").read_text("utf-8")).keys() == {"about", "rows", "tables"}
    except (OSError, ValueError, AttributeError):
        return False
