"""The starts of a run as a table, or the last one with the exit status of its class.

In: a run directory. Out: lines of text; an exit status. Kept: nothing.
"""

import os
import re
import time
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import NamedTuple

from pretrain.recovery.starts import KILLED, Start, starts
from pretrain.run import records
from pretrain.run.attempts import AttemptRecords
from pretrain.run.classes import FINISHED, INPUT
from pretrain.run.directory import RunDirectory
from pretrain.run.lock import is_held

TRAINS = os.EX_UNAVAILABLE
"""Exit status where the last start has no end yet: 75 would say that it may be made again."""


_LOOK_S = 0.5


class _Reached(NamedTuple):
    """How far a start came, as far as any line says."""

    step: int
    time: str
    is_end: bool
    """Whether it ended then; it may have come further otherwise."""


def wait_for_end(run: RunDirectory, most_s: float) -> None:
    """Wait until no process trains in a run directory, or `most_s` have passed."""
    deadline = time.monotonic() + most_s
    while time.monotonic() < deadline and is_held(run.root):
        time.sleep(_LOOK_S)


def table(run: RunDirectory) -> list[str]:
    """A line for each start, under a line of headings."""
    all_starts, reached = _read(run)
    trains = _trains(run, all_starts)
    rows = [["attempt", "steps", "processes", "began (UTC)", "took", "status", "ended", "first cause"]]
    for start in all_starts:
        is_running = trains and start is all_starts[-1]
        status = "" if is_running else str(start.exit_class.status)
        ended = "still trains" if is_running else start.exit
        steps, took = _steps(start, reached[start.attempt]), _took(start, reached[start.attempt])
        cause = start.cause.brief if start.cause else ""
        rows.append([str(start.attempt), steps, str(start.world_size), _clock(start.began), took, status, ended, cause])
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]


def last(run: RunDirectory) -> tuple[list[str], int]:
    """What the last start ended by and what helps, and the exit status of its class.

    The status is that of a mistake in the input where the next start would be refused, whatever the last one ended by:
    a batch system that starts it again would not learn that from a launcher.
    """
    all_starts, reached = _read(run)
    start = all_starts[-1]
    ended, at = start.exit_class, reached[start.attempt]
    lines = [
        f"attempt {start.attempt} of {run.root}",
        f"steps        {_steps(start, at)}, {start.world_size} process{'' if start.world_size == 1 else 'es'}",
        f"began        {_clock(start.began)} UTC, took {_took(start, at)}",
    ]
    if _trains(run, all_starts):
        return [*lines, "ended        not yet: it still trains"], TRAINS
    lines += [
        f"ended        {start.exit}",
        f"class        {ended.name} ({ended.status}): {ended.signal}",
        f"what failed  {ended.scope}",
    ]
    lines += [f"first cause  {why}"] if (why := start.why(run)) else []
    from pretrain.checkpoint.load import newest_step  # imports torch
    from pretrain.recovery.breaker import OPTION, refusal

    if ended is not FINISHED and (refused := refusal(run, all_starts, newest_step(run.checkpoints))):
        lines.append(f"what to do   the next start is refused: {refused}; mend the cause, then start with {OPTION}")
        return lines, INPUT.status
    return [*lines, f"what to do   {ended.remedy}"], ended.status


def _read(run: RunDirectory) -> tuple[list[Start], dict[int, _Reached]]:
    """The starts of a run, and how far each came.

    Raises:
        ValueError: it is no run directory, or none has begun yet.
    """
    run.read()
    if not (all_starts := starts(AttemptRecords.read(run))):
        raise ValueError(f"{run.root}: attempts.jsonl has no start; none has begun yet")
    logged = {line["attempt"]: line for line in records.read(run.metrics) if {"attempt", "step", "time"} <= line.keys()}
    found = {}
    for start in all_starts:
        line = logged.get(start.attempt, {"step": start.base_step, "time": start.began})
        at_stop = re.search(r"at step (\d+)$", start.exit)
        steps = [start.base_step, line["step"], *(each.step for each in start.errors)]
        steps += [int(at_stop[1])] if at_stop else []
        found[start.attempt] = _Reached(max(steps), start.ended or line["time"], start.ended is not None)
    return all_starts, found


def _trains(run: RunDirectory, all_starts: Sequence[Start]) -> bool:
    """Whether the last start, which has written no end, still trains."""
    return all_starts[-1].exit == KILLED and is_held(run.root)


def _steps(start: Start, reached: _Reached) -> str:
    return f"{start.base_step:,} to {reached.step:,}"


def _took(start: Start, reached: _Reached) -> str:
    seconds = (datetime.fromisoformat(reached.time) - datetime.fromisoformat(start.began)).total_seconds()
    return f"{timedelta(seconds=round(max(seconds, 0)))}{'' if reached.is_end else ' at least'}"


def _clock(time: str) -> str:
    return f"{datetime.fromisoformat(time):%Y-%m-%d %H:%M:%S}"
