"""The restart limit: a run that fails again and again is not started once more, until somebody asks for it by name.

In: what a run has recorded of its starts. Out: an error with the cause, before anything is read or built; else a
line on standard error about how the last start failed. Kept: nothing.

A batch system that repeats a start repeats a failure, too. Two patterns are taken for such a loop:

- `SAME` starts in a row that failed by the same exception, raised by the same line of code, at the same step. Ends that
  somebody asked for (Ctrl-C, SIGTERM), kills, and mistakes in files or a full disk that are found before a start has
  trained are no such failures: they cost seconds, and are mended outside of the run.
- `IDLE` starts in a row that made no checkpoint, however they ended: a process that runs out of memory records no
  error. Fewer would stop healthy runs on machines that are taken away often.
"""

from collections import Counter
from collections.abc import Sequence

from zymogen.console.safe_text import log
from zymogen.processes.exit_classes import INPUT, STORAGE
from zymogen.trainer.run.attempts import Attempt, RankError, last_failure
from zymogen.trainer.run.directory import RunDirectory

SAME, IDLE = 3, 10
OPTION = "--despite-failures"
_MENDED_OUTSIDE = (INPUT.name, STORAGE.name)
"""Classes of failures that are no failures of the run if nothing was trained yet."""


def require_progress(
    run: RunDirectory, all_starts: Sequence[Attempt], newest_step: int, *, despite_failures: bool
) -> bool:
    """Refuse a start that would only repeat what the last ones did; rank 0 only. It takes no time.

    Args:
        run: claimed by this process.
        all_starts: of the run, on all machines.
        newest_step: of its newest checkpoint on any of them; 0 without one.
        despite_failures: whether somebody asked for the start by name. The starts before it are not counted again.

    Returns:
        Whether it would have been refused otherwise.

    Raises:
        ValueError: it is refused.
    """
    reason = refusal(run, all_starts, newest_step)
    if reason is not None and not despite_failures:
        raise ValueError(
            f"{run.root}: {reason}; another start would most likely end like these: mend the cause, then start with "
            f"{OPTION}, which counts from there, or choose another run.directory"
        )
    if failed := last_failure(run, all_starts):
        log(failed)
    return reason is not None


def refusal(run: RunDirectory, all_starts: Sequence[Attempt], newest_step: int) -> str | None:
    """Why the next start is refused, if it is."""
    since = consecutive_failures(all_starts)
    same = [start.cause for start in since[-SAME:]]
    last = same[-1] if same else None
    if last is not None and len(same) == SAME and all(_are_one(cause, last) for cause in same):
        return f"the last {SAME} starts ended at step {last.step:,} by the same error: {last.line(run)}"
    idle = since[-IDLE:]
    if len(idle) < IDLE or newest_step > min(start.base_step for start in idle):
        return None
    ends = ", ".join(f"{count} x {end}" for end, count in Counter(start.exit for start in idle).most_common())
    cause = next((start.cause for start in reversed(idle) if start.cause), None)
    last_error = "" if cause is None else f"; the last error: {cause.brief}"
    return f"the last {len(idle)} starts made no checkpoint ({ends}{last_error})"


def consecutive_failures(all_starts: Sequence[Attempt]) -> Sequence[Attempt]:
    """The starts since the last one that finished, or that somebody asked for by name."""
    first = 0
    for place, start in enumerate(all_starts):
        if start.was_forced:
            first = place
        if start.exit == "finished":
            first = place + 1
    return all_starts[first:]


def _are_one(cause: RankError | None, other: RankError) -> bool:
    """Whether two errors are one, of the run itself. Their messages may differ in addresses, times and processes."""
    if cause is None or (cause.phase == "start" and cause.exit_class in _MENDED_OUTSIDE):
        return False
    return (cause.error, cause.step, cause.place) == (other.error, other.step, other.place)
