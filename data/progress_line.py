"""How far a build is: a bar on a terminal, elsewhere a line every ten seconds.

In: counts. Out: text on standard error. Kept: where the rate is counted from.
"""

import sys
import time
from typing import Any, TextIO


class ProgressLine:
    """Shows records, residues, rate and time left of one build.

    Args:
        stream: where to; standard error if not given.
        every_s: seconds between lines, where it is no terminal.
    """

    def __init__(self, stream: TextIO | None = None, every_s: float = 10.0) -> None:
        self._stream, self._every_s = stream or sys.stderr, every_s
        self._began: tuple[float, int, int] | None = None
        self._last = time.monotonic()
        self._bar: Any = None
        self._task: Any = None

    def __enter__(self) -> "ProgressLine":
        if self._stream.isatty():
            self._bar = _bar(self._stream)
        if self._bar is not None:
            self._bar.start()
            self._task = self._bar.add_task("reading", total=None)
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.stop()

    def __call__(self, records: int, residues: int, bytes_read: int, num_bytes: int | None) -> None:
        """Take note of how far it is; bytes are those of the sources as stored."""
        now = time.monotonic()
        if self._began is None:
            self._began = now, residues, bytes_read
        began, first_residues, first_bytes = self._began
        taken_s = now - began
        if now < self._last + (0.2 if self._bar is not None else self._every_s):
            return
        self._last = now
        text = f"{records:,} records, {residues:,} residues"
        if taken_s > 0:
            text += f", {(residues - first_residues) / taken_s / 1e6:.1f} M residues/s"
            if num_bytes and bytes_read > first_bytes:
                left_s = max(0, num_bytes - bytes_read) * taken_s / (bytes_read - first_bytes)
                text += f", {_time(left_s)} left"
        if self._bar is not None:
            self._bar.update(self._task, description=text, completed=bytes_read, total=num_bytes)
            return
        share = f"{min(1.0, bytes_read / num_bytes):.1%}: " if num_bytes else ""
        print(f"building the token store: {share}{text}", file=self._stream, flush=True)


def _bar(stream: TextIO) -> Any:
    try:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn
    except ImportError:
        return None
    columns = BarColumn(bar_width=20), TaskProgressColumn(), TextColumn("{task.description}", markup=False)
    return Progress(*columns, console=Console(file=stream), transient=True)


def _time(seconds: float) -> str:
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"
