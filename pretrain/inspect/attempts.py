"""The starts of a run as a table, or the last one with the exit status of its class.

In: a run directory. Out: lines of text; an exit status. Kept: nothing.
"""

import os
import time
from datetime import UTC, datetime, timedelta

from zymogen.console.progress import in_columns
from zymogen.processes.exit_classes import FINISHED, INPUT
from zymogen.trainer.run.attempts import KILLED, Attempt
from zymogen.trainer.run.directory import RunDirectory
from zymogen.trainer.run.lock import is_held
from zymogen.trainer.run.reader import RunReader

TRAINS = os.EX_UNAVAILABLE
"""Exit status where the last start has no end yet: 75 would say that it may be made again."""

_LOOK_S = 0.5


def wait_for_end(run: RunDirectory, most_s: float) -> None:
    """Wait until no process trains in a run directory, or `most_s` have passed."""
    deadline = time.monotonic() + most_s
    while time.monotonic() < deadline and is_held(run.root):
        time.sleep(_LOOK_S)


def table(run: RunDirectory) -> list[str]:
    """A line for each start, under a line of headings."""
    all_starts = _read(run)
    rows = [["attempt", "steps", "processes", "began (UTC)", "took", "status", "ended", "first cause"]]
    for start in all_starts:
        is_running = start is all_starts[-1] and _trains(run, start)
        status, ended = ("", "still trains") if is_running else (str(start.exit_class.status), start.exit)
        cause = start.cause.brief if start.cause else ""
        rows.append([str(start.attempt), _steps(start), str(start.world_size), *_times(start), status, ended, cause])
    return in_columns(rows)


def last(run: RunDirectory) -> tuple[list[str], int]:
    """What the last start ended by and what helps, and the exit status of its class.

    The status is that of a mistake in the input where the next start would be refused, whatever the last one ended by:
    a batch system that starts it again would not learn that from a launcher.
    """
    all_starts = _read(run)
    start = all_starts[-1]
    ended, (began, took) = start.exit_class, _times(start)
    lines = [
        f"attempt {start.attempt} of {run.root}",
        f"steps        {_steps(start)}, {start.world_size} process{'' if start.world_size == 1 else 'es'}",
        f"began        {began} UTC, took {took}",
    ]
    if _trains(run, start):
        return [*lines, "ended        not yet: it still trains"], TRAINS
    lines += [
        f"ended        {start.exit}",
        f"class        {ended.name} ({ended.status}): {ended.signal}",
        f"what failed  {ended.scope}",
    ]
    lines += [f"first cause  {why}"] if (why := start.why(run)) else []
    from zymogen.trainer.checkpoint.load import newest_step  # imports torch
    from zymogen.trainer.recovery.restart_limit import OPTION, refusal

    if ended is not FINISHED and (refused := refusal(run, all_starts, newest_step(run.checkpoints))):
        lines.append(f"what to do   the next start is refused: {refused}; mend the cause, then start with {OPTION}")
        return lines, INPUT.status
    return [*lines, f"what to do   {ended.remedy}"], ended.status


def _read(run: RunDirectory) -> list[Attempt]:
    """The starts of a run.

    Raises:
        ValueError: it is no run directory, or none has begun yet.
    """
    if not (all_starts := RunReader(run.root).attempts):
        raise ValueError(f"{run.root}: attempts.jsonl has no start; none has begun yet")
    return all_starts


def _trains(run: RunDirectory, last_start: Attempt) -> bool:
    """Whether the last start, which has written no end, still trains."""
    return last_start.exit == KILLED and is_held(run.root)


def _steps(start: Attempt) -> str:
    return f"{start.base_step:,} to {start.step:,}"


def _times(start: Attempt) -> tuple[str, str]:
    """When it began, and how long it took."""
    at_least = " at least" if start.exit == KILLED else ""
    took = f"{timedelta(seconds=round(start.ended - start.began))}{at_least}"
    return f"{datetime.fromtimestamp(start.began, UTC):%Y-%m-%d %H:%M:%S}", took
