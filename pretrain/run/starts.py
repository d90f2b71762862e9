"""The starts of a run: when each began and ended, how, and which error was the first of it.

In: what a run has recorded. Out: a `Start` for each; a line about the last one. Kept: nothing. Torch is not imported.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from pretrain.run.attempts import AttemptRecords, Failure, failures, first_cause
from pretrain.run.classes import FINISHED, INTERRUPTED, PREEMPTED, ExitClass, class_of_record
from pretrain.run.directory import RunDirectory
from pretrain.run.records import seconds

KILLED = "killed"
_AS_ASKED = (FINISHED, INTERRUPTED, PREEMPTED)


class Start(NamedTuple):
    """One start of a run."""

    attempt: int
    base_step: int
    """Step of the checkpoint that it began with; 0 without one."""
    step: int
    """The last step that any line tells of; it may have come further where it was killed."""
    exit: str
    """How it ended; `KILLED` where it could not say, also while it trains."""
    was_asked_for: bool
    """Whether somebody asked for it by name, when it would have been refused."""
    errors: tuple[Failure, ...]
    """Those of all ranks, the earliest first."""
    world_size: int
    began: float
    """Time, in seconds since 1970."""
    ended: float
    """The same; where it could not say, the time of its last line of metrics, or `began`."""

    @property
    def cause(self) -> Failure | None:
        """What failed first, if anything did."""
        return first_cause(self.errors)

    @property
    def exit_class(self) -> ExitClass:
        """The class of its first cause, also where rank 0 was ended or killed after it; else what rank 0 says."""
        said = class_of_record(None if self.exit == KILLED else self.exit)
        return said if self.cause is None or said is FINISHED else class_of_record(self.cause.exit_class)

    @property
    def is_as_asked(self) -> bool:
        """Whether it finished, or ended because a signal asked for that."""
        return self.exit != KILLED and self.exit_class in _AS_ASKED

    def why(self, run: RunDirectory) -> str:
        """What it ended by, in words; empty where it ended as it was asked to, and where nothing is known."""
        if self.is_as_asked:
            return ""
        if self.cause:
            return self.cause.line(run)
        if self.exit == KILLED:
            return "it was killed, or its machine went away"
        lost = "another rank was killed, or its machine or the network went away; "
        return f"{lost}{self.errors[0].line(run)}" if self.errors else ""


def starts(known: AttemptRecords, metrics: Iterable[Mapping[str, Any]] = ()) -> list[Start]:
    """All starts of a run, in order; without its lines of `metrics`, `step` and `ended` are as its attempts say."""
    begun: dict[int, dict[str, Any]] = {}
    ended: dict[int, dict[str, Any]] = {}
    for line in known.attempts:
        (ended if "exit" in line else begun)[line["attempt"]] = line
    logged = {line["attempt"]: line for line in metrics}  # of each the last one
    errors = failures(known)
    return [
        _start(line, ended.get(number), logged.get(number), errors.get(number, []))
        for number, line in sorted(begun.items())
    ]


def _start(
    line: Mapping[str, Any], end: Mapping[str, Any] | None, logged: Mapping[str, Any] | None, errors: list[Failure]
) -> Start:
    ended_as, began = str(end["exit"]) if end else KILLED, seconds(line["time"])
    at_stop = re.search(r"at step (\d+)$", ended_as)
    steps = [int(line["base_step"]), logged["step"] if logged else 0, *(each.step for each in errors)]
    return Start(
        attempt=line["attempt"],
        base_step=int(line["base_step"]),
        step=max([*steps, int(at_stop[1])] if at_stop else steps),
        exit=ended_as,
        was_asked_for=bool(line.get("despite_failures")),
        errors=tuple(errors),
        world_size=int(line["world_size"]),
        began=began,
        ended=max(began, seconds((end or logged or line)["time"])),
    )


def last_failure(run: RunDirectory, all_starts: Sequence[Start]) -> str | None:
    """A line about how the last start failed, which may not have been able to print it; None where it did not fail."""
    last = all_starts[-1] if all_starts else None
    if last is None or last.is_as_asked:
        return None
    why = last.why(run)
    if last.exit == KILLED and not last.cause:
        return f"the last start (attempt {last.attempt}): {why}"
    first = last.cause or next(iter(last.errors), None)
    at = f" at step {first.step:,}" if first else ""
    return f"the last start (attempt {last.attempt}) ended as {last.exit_class.name}{at}{why and ': '}{why}"
