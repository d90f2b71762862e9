"""Progress: on a terminal one line that is updated, elsewhere a line for each report.

In: how much is done, and a text. Out: text on standard error. Kept: the line on the screen, and the first report, from
which the rate is computed.
"""

import sys
import time
from typing import Any, Self, TextIO


class ProgressLine:
    """The progress of one piece of work.

    Args:
        total: the value of `update` at the end; None if it is not known.
        speaks: whether anything is shown; of several processes, one shows it.
        stream: the stream to write to; standard error if not given.
    """

    _title, _share = "", "{:5.1f} %  "
    """The beginning of a line that is not on a terminal: a title, and how many per cent are done."""
    _stays = True
    """Whether the line stays on the terminal at the end."""

    def __init__(self, total: float | None = None, speaks: bool = True, stream: TextIO | None = None) -> None:
        self._total, self._speaks, self._stream = total, speaks, stream or sys.stderr
        self._bar: Any = _bar(self._stream, not self._stays) if speaks and self._stream.isatty() else None
        self._task = self._bar and self._bar.add_task("starting", total=total)

    def __enter__(self) -> Self:
        if self._bar:
            self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar:
            self._bar.stop()

    def update(self, done: float, text: str) -> None:
        """Show that `done` of the total is done."""
        if self._bar:
            self._bar.update(self._task, completed=done, total=self._total, description=text)
        else:
            share = self._share.format(100 * min(1.0, done / self._total)) if self._total else ""
            self.say(f"{self._title}{share}{text}")

    def say(self, text: str) -> None:
        """Write a line that stays."""
        if self._bar:
            self._bar.console.print(text, markup=False, emoji=False, highlight=False, soft_wrap=True)
        elif self._speaks:
            print(text, file=self._stream, flush=True)


class BuildLine(ProgressLine):
    """Records, residues, rate and time left of one build.

    Args:
        stream: the stream to write to; standard error if not given.
        every_s: seconds between lines, if it is not a terminal.
    """

    _title, _share = "building the token store: ", "{:.1f}%: "
    _stays = False

    def __init__(self, stream: TextIO | None = None, every_s: float = 10.0) -> None:
        super().__init__(stream=stream)
        self._every_s = 0.2 if self._bar else every_s
        self._opened = self._last = time.monotonic()
        self._reports: list[tuple[float, int, int]] = []
        """The first and the latest report: time, residues, bytes read."""

    def __call__(self, records: int, residues: int, bytes_read: int, num_bytes: int | None) -> None:
        """Report progress; bytes are stored bytes of the sources."""
        now = time.monotonic()
        self._reports[1:] = [(now, residues, bytes_read)]
        began, first_residues, first_bytes = self._reports[0]
        taken_s = now - began
        if now < self._last + self._every_s:
            return
        self._last, self._total = now, num_bytes
        text = f"{records:,} records, {residues:,} residues"
        if taken_s > 0:
            text += f", {(residues - first_residues) / taken_s / 1e6:.1f} M residues/s"
            if num_bytes and bytes_read > first_bytes and not self._bar:
                left_s = max(0, num_bytes - bytes_read) * taken_s / (bytes_read - first_bytes)
                text += f", {_time(left_s)} left"
        self.update(bytes_read, text)

    def summary(self, num_residues: int) -> str:
        """How long the build of `num_residues` took, and how fast it was."""
        if not self._reports:
            return "none: it was there already"
        took_s = time.monotonic() - self._opened
        (first_s, first, _), (last_s, last, _) = self._reports[0], self._reports[-1]
        # From report to report, as a build that was continued did not begin with 0 residues.
        rate = (last - first) / (last_s - first_s) if last_s > first_s else num_residues / took_s
        return f"{took_s:,.1f} s, {rate / 1e6:,.1f} M residues/s"


def _bar(stream: TextIO, transient: bool) -> Any:
    from rich.console import Console
    from rich.progress import Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

    # The text and the other columns take 80 characters; with a bar, the text would be cut.
    columns = TextColumn("{task.description}", markup=False), TaskProgressColumn(), TimeRemainingColumn()
    return Progress(*columns, console=Console(file=stream), transient=transient)


def _time(seconds: float) -> str:
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"
