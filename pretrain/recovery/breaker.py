"""The breaker: a run whose starts fail again and again is not started once more, until somebody asks for it by name.

In: what a run directory says of its starts. Out: an error with the cause, before anything is read or built. Kept:
nothing.

A batch system that repeats a start repeats a failure, too. Two patterns are taken for such a loop:

- `SAME` starts in a row that failed by the same exception at the same step. Ends that somebody asked for (Ctrl-C,
  SIGTERM), kills, and mistakes in files or a full disk that are found before a start has trained are no such failures:
  they cost seconds, and are mended outside of the run.
- `IDLE` starts in a row that made no checkpoint, however they ended. Fewer would stop healthy runs on machines that
  are taken away often.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from pretrain.checkpoint.load import find
from pretrain.run import records
from pretrain.run.classes import INPUT, PEER, STORAGE, is_of_a_peer
from pretrain.run.directory import RunDirectory

SAME, IDLE = 3, 10
OPTION = "--despite-failures"
_MENDED_OUTSIDE = (INPUT.name, STORAGE.name)
"""Classes of failures that are no failures of the run if nothing was trained yet."""


class Cause(NamedTuple):
    """The first error of a start."""

    rank: int
    error: str
    """Name of the exception's class."""
    message: str
    step: int
    phase: str
    exit_class: str

    @property
    def is_of_the_run(self) -> bool:
        """Whether another start would meet it again, and may have trained for long until then."""
        return self.phase != "start" or self.exit_class not in _MENDED_OUTSIDE


class Start(NamedTuple):
    """One start of a run."""

    attempt: int
    base_step: int
    """Step of the checkpoint that it began with; 0 without one."""
    exit: str
    """How it ended; "killed" where it could not say."""
    was_asked_for: bool
    """Whether it was made with `OPTION`, when it would have been refused."""
    cause: Cause | None
    """What failed first, if anything did."""


def require_progress(run: RunDirectory, *, despite_failures: bool) -> bool:
    """Refuse a start that would only repeat what the last ones did; rank 0 only. It takes no time.

    Args:
        run: claimed by this process.
        despite_failures: whether somebody asked for the start by name. The starts before it are not counted again.

    Returns:
        Whether it would have been refused otherwise.

    Raises:
        ValueError: it is refused.
    """
    newest = max((int(path.name.removeprefix("step-")) for path in find(run.checkpoints)), default=0)
    reason = _reason(run, starts(run), newest)
    if reason is not None and not despite_failures:
        raise ValueError(
            f"{run.root}: {reason}; another start would most likely end like these: mend the cause, then start with "
            f"{OPTION}, which counts from there, or choose another run.directory"
        )
    return reason is not None


def starts(run: RunDirectory) -> list[Start]:
    """All starts of a run, in order."""
    begun: dict[int, dict[str, object]] = {}
    ended: dict[int, str] = {}
    for line in records.read(run.attempts):
        if "exit" in line:
            ended[line["attempt"]] = line["exit"]
        else:
            begun[line["attempt"]] = line
    causes = _first_causes(run)
    return [
        Start(
            number,
            int(str(line["base_step"])),
            ended.get(number, "killed"),
            bool(line.get("despite_failures")),
            causes.get(number),
        )
        for number, line in sorted(begun.items())
    ]


def _reason(run: RunDirectory, all_starts: Sequence[Start], newest: int) -> str | None:
    """Why the next start is refused, if it is."""
    counted = _counted(all_starts)
    same = [start.cause for start in counted[-SAME:]]
    last = same[-1] if same else None
    if last is not None and len(same) == SAME and all(_alike(cause, last) for cause in same):
        where = run.rank_file(last.rank).relative_to(run.root)
        return (
            f"the last {SAME} starts ended at step {last.step:,} by the same error: {last.error}: "
            f"{_first_line(last.message)} (rank {last.rank}; {where} has the traceback)"
        )
    idle = list(_without_checkpoint(counted, newest))
    if len(idle) < IDLE:
        return None
    ends = ", ".join(f"{count} x {end}" for end, count in Counter(start.exit for start in idle).most_common())
    cause = next((start.cause for start in reversed(idle) if start.cause), None)
    last_error = "" if cause is None else f"; the last error was {cause.error}: {_first_line(cause.message)}"
    return f"the last {len(idle)} starts made no checkpoint ({ends}{last_error})"


def _counted(all_starts: Sequence[Start]) -> Sequence[Start]:
    """The starts since the last one that finished, or that somebody asked for by name."""
    first = 0
    for place, start in enumerate(all_starts):
        if start.was_asked_for:
            first = place
        if start.exit == "finished":
            first = place + 1
    return all_starts[first:]


def _without_checkpoint(counted: Sequence[Start], newest: int) -> Iterator[Start]:
    """The last starts that made no checkpoint: the next one began where they did, or before."""
    found = newest
    for start in reversed(counted):
        if found > start.base_step:
            return
        yield start
        found = start.base_step


def _alike(cause: Cause | None, other: Cause) -> bool:
    """Whether two errors are one. Their messages may differ in addresses, times and processes."""
    return cause is not None and cause.is_of_the_run and (cause.error, cause.step) == (other.error, other.step)


def _first_causes(run: RunDirectory) -> dict[int, Cause]:
    """The earliest error of each attempt that is not the consequence of another rank's end."""
    causes: dict[int, tuple[str, Cause]] = {}
    for path in sorted(run.rank_file(0).parent.glob("rank-*.jsonl")):
        for line in records.read(path):
            is_victim = line["class"] == PEER.name or is_of_a_peer(line["error"], line["message"])
            before = causes.get(line["attempt"])
            if not is_victim and (before is None or line["time"] < before[0]):
                names = ("rank", "error", "message", "step", "phase", "class")
                causes[line["attempt"]] = line["time"], Cause(*(line[name] for name in names))
    return {attempt: cause for attempt, (_, cause) in causes.items()}


def _first_line(message: str) -> str:
    lines = message.strip().splitlines()
    return lines[0] if lines else "no message"
