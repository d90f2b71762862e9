"""Progress: on a terminal one line that is updated, elsewhere a line for each report.

In: how much is done, and a text. Out: text on standard error. Kept: the line on the screen, and the first report, from
which the rate is computed.
"""

import builtins
import sys
import threading
import time
from collections.abc import Sequence
from typing import Any, ClassVar, Literal, Self, TextIO

from zymogen.console.safe_text import IS_SILENT, printable


class ProgressLine:
    """The progress of one piece of work.

    Args:
        total: the value of `update` at the end; None if it is not known.
        speaks: whether anything is shown; of several processes, one shows it.
        stream: the stream to write to; standard error if not given.
    """

    _title = ""
    """The beginning of each line that is not on a terminal."""
    _stays = True
    """Whether the line stays on the terminal at the end."""
    _shows: Literal["text", "rest", "time"] = "text"
    """What a terminal shows: the text alone, on as many lines as it needs; or beside it what is left, or the time."""
    _shown: ClassVar[list[Any]] = []
    """The bars of lines that enclose each other. The last one alone is on the terminal."""

    def __init__(self, total: float | None = None, speaks: bool = True, stream: TextIO | None = None) -> None:
        speaks = speaks and not IS_SILENT.get()
        self._total, self._speaks, self._stream = total, speaks, stream or sys.stderr
        self._bar: Any = _bar(self._stream, not self._stays, self._shows) if speaks and self._stream.isatty() else None
        self._task = self._bar and self._bar.add_task("starting", total=total)

    def __enter__(self) -> Self:
        self._opened = time.monotonic()
        if self._bar:
            self._show()
        return self

    @property
    def _took_s(self) -> float:
        return time.monotonic() - self._opened

    def __exit__(self, *error: object) -> None:
        if self._bar:
            self._bar.stop()
            ProgressLine._shown[:] = [bar for bar in self._shown if bar is not self._bar]
            for bar in self._shown[-1:]:
                bar.start()

    def _show(self) -> None:
        for bar in self._shown[-1:]:
            bar.stop()
        self._shown.append(self._bar)
        self._bar.start()

    def update(self, done: float, text: str) -> None:
        """Show that `done` of the total is done."""
        if self._bar:
            parts = printable(text).split(" | ")
            while len(" | ".join(parts)) > self._bar.console.width and len(parts) > 3:
                del parts[2]  # the first two and the last ones are looked for first
            self._bar.update(self._task, completed=done, total=self._total, description=" | ".join(parts))
        else:
            self.print(f"{self._title}{text}")

    def print(self, text: str) -> None:
        """Write a line that stays."""
        text = printable(text)
        if self._bar:
            self._bar.console.print(text, markup=False, emoji=False, highlight=False, soft_wrap=True)
        elif self._speaks:
            builtins.print(text, file=self._stream, flush=True)


class BuildProgress(ProgressLine):
    """Records, residues, rate and time left of one build.

    Args:
        stream: the stream to write to; standard error if not given.
        every_s: seconds between lines, if it is not a terminal.
    """

    _title = "building the token store: "
    _stays = False
    _shows = "rest"
    told_from_s = 2.0
    """A build that takes less is not mentioned at its end."""

    def __init__(self, stream: TextIO | None = None, every_s: float = 10.0) -> None:
        super().__init__(stream=stream)
        self._every_s = 0.2 if self._bar else every_s
        self._last = time.monotonic()
        self._reports: list[tuple[float, int, int]] = []
        """The first and the latest report: time, residues, bytes read."""
        self._records = 0

    def __exit__(self, *error: object) -> None:
        super().__exit__(*error)
        if error[0] is None and self._reports and self._took_s >= self.told_from_s:
            amount = f"{self._records:,} records, {self._reports[-1][1]:,} residues"
            self.print(f"built the token store: {amount}, in {clock_time(self._took_s)}")

    def __call__(self, records: int, residues: int, bytes_read: int, num_bytes: int | None) -> None:
        """Report progress; bytes are stored bytes of the sources."""
        now = time.monotonic()
        self._reports[1:] = [(now, residues, bytes_read)]
        self._records = records
        began, first_residues, first_bytes = self._reports[0]
        taken_s = now - began
        if now < self._last + self._every_s:
            return
        self._last, self._total = now, num_bytes
        text = f"{records:,} records, {residues:,} residues"
        if taken_s > 0:
            text += f", {(residues - first_residues) / taken_s / 1e6:.1f} M residues/s"
        if not self._bar and num_bytes:
            text = f"{100 * min(1.0, bytes_read / num_bytes):.1f}%: {text}"
            if taken_s > 0 and bytes_read > first_bytes:
                left_s = max(0, num_bytes - bytes_read) * taken_s / (bytes_read - first_bytes)
                text += f", {clock_time(left_s)} left"
        self.update(bytes_read, text)

    def summary(self, num_residues: int) -> str:
        """How long the build of `num_residues` took, and how fast it was."""
        if not self._reports:
            return "none: it was there already"
        (first_s, first, _), (last_s, last, _) = self._reports[0], self._reports[-1]
        # From report to report, as a build that was continued did not begin with 0 residues.
        rate = (last - first) / (last_s - first_s) if last_s > first_s else num_residues / self._took_s
        return f"{self._took_s:,.1f} s, {rate / 1e6:,.1f} M residues/s"


class ProgressBar(ProgressLine):
    """One piece of work whose share that is done is not known: that it runs, for how long, and what it took.

    Work that takes less than `after_s` is not mentioned. On a terminal the time runs on; elsewhere there is a line at
    the beginning and one every `every_s` seconds.

    Args:
        text: what is done, such as "clustering 500 sequences".
        stream: the stream to write to; standard error if not given.
        after_s: seconds after which it is first shown; 0 for work that is always shown.
        every_s: seconds between lines, if it is not a terminal.
        speaks: whether anything is shown.
    """

    _stays = False
    _shows = "time"

    def __init__(
        self,
        text: str,
        stream: TextIO | None = None,
        *,
        after_s: float = 1.0,
        every_s: float = 10.0,
        speaks: bool = True,
    ) -> None:
        self._text, self._after_s, self._every_s = text, after_s, every_s
        super().__init__(speaks=speaks, stream=stream)
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._tell, daemon=True)

    def __enter__(self) -> Self:
        self._opened = time.monotonic()
        if self._speaks:
            self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        if not self._speaks:
            return
        took_s = self._took_s
        self._ended.set()
        self._thread.join()
        super().__exit__(*error)
        if error[0] is None and took_s >= self._after_s:
            self.print(f"{self._text}: took {clock_time(took_s)}")

    def _tell(self) -> None:
        """Run in a thread of its own, so that the work need not report."""
        if self._ended.wait(self._after_s):
            return
        if self._bar:
            self._bar.update(self._task, description=self._text)
            self._show()  # rich updates the time by itself
            return
        self.print(f"{self._text} ...")
        while not self._ended.wait(self._every_s):
            self.print(f"{self._text}: {clock_time(self._took_s)} so far")


def clock_time(seconds: float) -> str:
    """A time that counts up or down: ``0:07``, ``2:31``, ``1:02:03``, ``3 d 4 h``."""
    minutes, whole = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours >= 48:
        return f"{hours // 24:,} d {hours % 24} h"
    return f"{hours}:{minutes:02}:{whole:02}" if hours else f"{minutes}:{whole:02}"


def in_columns(rows: Sequence[Sequence[str]]) -> list[str]:
    """Rows of a table as lines, whose columns stand below each other."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]


def _bar(stream: TextIO, transient: bool, shows: str) -> Any:
    from rich.console import Console
    from rich.progress import (
        Progress,
        SpinnerColumn,
        TaskProgressColumn,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )
    from rich.table import Column

    columns: list[Any] = [TextColumn("{task.description}", markup=False, table_column=Column(no_wrap=False))]
    if shows == "rest":  # the text and these take 80 characters; with a bar, the text would be cut
        columns += [TaskProgressColumn(), TimeRemainingColumn()]
    if shows == "time":
        columns = [SpinnerColumn("line"), *columns, TimeElapsedColumn()]
    return Progress(*columns, console=Console(file=stream), transient=transient)
