"""How an attempt ends: every rank writes its error to its own file, rank 0 writes the attempt's end.

In: an exception. Out: one JSON line in ranks/rank-NNNNN.jsonl and one in attempts.jsonl; or, of the first start of a
run, nothing at all if it was refused or stopped before its first step. The files of all ranks tell which error was the
first: the one at the earliest step, then in the earliest phase. Clocks of machines decide only between errors of one
phase. The exception gets a note of it, or of the file that has its traceback, for the last words of the command.

`AttemptRecords` are the lines by which later starts decide, and an `Attempt` what they say of one. A run with
`run.checkpoint_url` has them in the object store, too. Kept: nothing.

An error of the class "error" is recorded in any case, because its files are needed to understand it; so is a
connection that was lost, because a rank that was killed has recorded nothing.
"""

import gzip
import json
import os
import re
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple, Self

from zymogen.console.safe_text import log
from zymogen.processes.errors import PeerError, with_location
from zymogen.processes.exit_classes import (
    ERROR,
    FINISHED,
    HANG,
    INTERRUPTED,
    PEER,
    PREEMPTED,
    ExitClass,
    class_of,
    class_of_record,
    is_of_a_peer,
)
from zymogen.processes.signals import Interrupted
from zymogen.trainer.run import records
from zymogen.trainer.run.directory import RunDirectory

KILLED = "killed"
_AS_ASKED = (FINISHED, INTERRUPTED, PREEMPTED)
_PHASES = ("start", "load", "train", "log", "checkpoint", "validate", "export")
"""Phases of an attempt, in the order of a step."""
_CODE = Path(__file__).parents[3]
_PACKAGES = ("zymogen", "data", "pretrain", "finetune")


class AttemptRecords(NamedTuple):
    """Lines about the attempts of a run, in order."""

    attempts: list[dict[str, Any]]
    """Beginnings and ends, as in attempts.jsonl."""
    errors: list[dict[str, Any]]
    """Errors of all ranks, as in their files."""
    faults: list[dict[str, Any]]
    """Lines of faults.jsonl."""

    @classmethod
    def read(cls, run: RunDirectory) -> Self:
        """Return those of a run directory."""
        of_ranks = sorted(run.rank_file(0).parent.glob("rank-*.jsonl"))
        return cls(_lines(run.attempts), _lines(*of_ranks), _lines(run.faults))

    def after(self, attempt: int) -> Self:
        """Return the lines of later attempts."""
        return type(self)(*([line for line in lines if line["attempt"] > attempt] for lines in self))

    def followed_by(self, other: Self) -> Self:
        """Return these lines, then those of `other` that are about later attempts."""
        last = max((line["attempt"] for line in self.attempts), default=0)
        return type(self)(*(mine + newer for mine, newer in zip(self, other.after(last), strict=True)))

    def append_to(self, run: RunDirectory) -> None:
        """Append all lines to the files of a run directory."""
        for line in self.errors:
            records.append(run.rank_file(line["rank"]), line)
        for path, lines in ((run.faults, self.faults), (run.attempts, self.attempts)):
            for line in lines:
                records.append(path, line)

    def to_bytes(self) -> bytes:
        """Return the lines in compressed form, those of errors without their tracebacks."""
        errors = [line | {"traceback": ""} for line in self.errors]
        return gzip.compress(json.dumps(self._replace(errors=errors)).encode(), mtime=0)

    @classmethod
    def from_bytes(cls, content: bytes) -> Self:
        """Return the lines that `to_bytes` compressed.

        Raises:
            ValueError: it has not.
        """
        return cls(*json.loads(gzip.decompress(content)))


NO_RECORDS = AttemptRecords([], [], [])


class RankError(NamedTuple):
    """An error that a rank wrote down."""

    rank: int
    error: str
    """Name of the exception's class."""
    message: str
    step: int
    phase: str
    exit_class: str
    time: str
    place: str
    """File and line of the innermost frame that is no library's; empty where nothing was raised."""

    @property
    def order(self) -> tuple[bool, int, int, str]:
        """What sorts the errors of an attempt: first at the earliest step and phase, and hangs after all others."""
        phase = _PHASES.index(self.phase) if self.phase in _PHASES else len(_PHASES)
        return self.error == HANG, self.step, phase, self.time

    @property
    def is_consequence(self) -> bool:
        """Whether it only says that another rank, or the network, went away."""
        return self.error != HANG and (self.exit_class == PEER.name or is_of_a_peer(self.error, self.message))

    @property
    def brief(self) -> str:
        """What failed, in a line."""
        first = next(iter(self.message.strip().splitlines()), "no message")
        return f"rank {self.rank}: {self.error}: {first}"

    def line(self, run: RunDirectory) -> str:
        """The same, and where more of it is; `run` is the one that it is of."""
        return f"{self.brief}; its traceback is in {run.rank_file(self.rank)}"


def _lines(*paths: Path) -> list[dict[str, Any]]:
    lines = (line for path in paths for line in records.read(path))
    return [line for line in lines if isinstance(line.get("attempt"), int)]


def failures(known: AttemptRecords) -> dict[int, list[RankError]]:
    """All errors of each attempt, the earliest first."""
    found: dict[int, list[RankError]] = {}
    for line in known.errors:
        with suppress(KeyError, TypeError):  # a line that no version writes hides no other
            names = ("rank", "error", "message", "step", "phase", "class", "time", "place")
            found.setdefault(line["attempt"], []).append(RankError(*(({"place": ""} | line)[name] for name in names)))
    return {attempt: sorted(errors, key=lambda each: each.order) for attempt, errors in found.items()}


def first_cause(errors: Iterable[RankError]) -> RankError | None:
    """The first of them that is no consequence of another rank's end."""
    return next((each for each in errors if not each.is_consequence), None)


class Attempt(NamedTuple):
    """One start of a run."""

    attempt: int
    base_step: int
    """Step of the checkpoint that it began with; 0 without one."""
    step: int
    """The last step that any line tells of; it may have come further where it was killed."""
    exit: str
    """How it ended; `KILLED` where it could not say, also while it trains."""
    was_forced: bool
    """Whether somebody asked for it by name, when it would have been refused."""
    errors: tuple[RankError, ...]
    """Those of all ranks, the earliest first."""
    world_size: int
    began: float
    """Time, in seconds since 1970."""
    ended: float
    """The same; where it could not say, the time of its last line of metrics, or `began`."""

    @property
    def cause(self) -> RankError | None:
        """What failed first, if anything did."""
        return first_cause(self.errors)

    @property
    def exit_class(self) -> ExitClass:
        """The class of its first cause, also where rank 0 was ended or killed after it; else what rank 0 says."""
        said = class_of_record(None if self.exit == KILLED else self.exit)
        return said if self.cause is None or said is FINISHED else class_of_record(self.cause.exit_class)

    @property
    def ended_on_request(self) -> bool:
        """Whether it finished, or ended because a signal asked for that."""
        return self.exit != KILLED and self.exit_class in _AS_ASKED

    def why(self, run: RunDirectory) -> str:
        """What it ended by, in words; empty where it ended as it was asked to, and where nothing is known."""
        if self.ended_on_request:
            return ""
        if self.cause:
            return self.cause.line(run)
        if self.exit == KILLED:
            return "it was killed, or its machine went away"
        lost = "another rank was killed, or its machine or the network went away; "
        return f"{lost}{self.errors[0].line(run)}" if self.errors else ""


def attempts(known: AttemptRecords, metrics: Iterable[Mapping[str, Any]] = ()) -> list[Attempt]:
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
        if records.has_time(line)
    ]


def _start(
    line: Mapping[str, Any], end: Mapping[str, Any] | None, logged: Mapping[str, Any] | None, errors: list[RankError]
) -> Attempt:
    ended_as, began = str(end["exit"]) if end else KILLED, records.seconds(line["time"])
    last = next(each for each in (end, logged, line) if each and records.has_time(each))
    at_stop = re.search(r"at step (\d+)$", ended_as)
    steps = [int(line["base_step"]), logged["step"] if logged else 0, *(each.step for each in errors)]
    return Attempt(
        attempt=line["attempt"],
        base_step=int(line["base_step"]),
        step=max([*steps, int(at_stop[1])] if at_stop else steps),
        exit=ended_as,
        was_forced=bool(line.get("despite_failures")),
        errors=tuple(errors),
        world_size=int(line["world_size"]),
        began=began,
        ended=max(began, records.seconds(last["time"])),
    )


def last_failure(run: RunDirectory, all_starts: Sequence[Attempt]) -> str | None:
    """A line about how the last start failed, which may not have been able to print it; None where it did not fail."""
    last = all_starts[-1] if all_starts else None
    if last is None or last.ended_on_request:
        return None
    why = last.why(run)
    if last.exit == KILLED and not last.cause:
        return f"the last start (attempt {last.attempt}): {why}"
    first = last.cause or next(iter(last.errors), None)
    at = f" at step {first.step:,}" if first else ""
    return f"the last start (attempt {last.attempt}) ended as {last.exit_class.name}{at}{why and ': '}{why}"


def move_base(run: RunDirectory, attempt: int, step: int) -> None:
    """Write down that an attempt begins at another step, as the checkpoint that it was to begin from is damaged."""
    line = [each for each in records.read(run.attempts) if each["attempt"] == attempt][-1]
    with with_location(run.attempts):
        records.append(run.attempts, line | {"base_step": step})


@contextmanager
def recorded(
    run: RunDirectory,
    rank: int,
    attempt: int,
    position: Callable[[], dict[str, object]],
    newest: Callable[[], Path | None],
) -> Iterator[None]:
    """Context of one attempt; an error inside is written down and raised again.

    Args:
        run: where to write.
        rank: number of this process.
        attempt: number of the attempt.
        position: step and phase at the time of the error.
        newest: the newest checkpoint then, for the user who stops the run.
    """
    try:
        yield
    except BaseException as error:
        where, exit_class = position(), class_of(error)
        if isinstance(error, Interrupted):
            error.checkpoint = newest()
            error.outcome += f" at step {where['step']}" if where["step"] else " before the first step"
        began = attempt > 1 or where["step"] or run.has_trained
        with _as_far_as_the_disk_goes(run):
            needed = exit_class is ERROR or (exit_class is PEER and not isinstance(error, PeerError))
            if began or needed or (rank == 0 and not run.remove()):
                _record(run, rank, attempt, error, exit_class, where)
        raise
    if rank == 0:
        with _as_far_as_the_disk_goes(run):
            run.end_attempt(attempt, FINISHED.name)


def _record(
    run: RunDirectory, rank: int, attempt: int, error: BaseException, exit_class: ExitClass, where: dict[str, object]
) -> None:
    if not isinstance(error, Interrupted):
        line = {
            "time": records.now(),
            "attempt": attempt,
            "rank": rank,
            "class": exit_class.name,
            **where,
            "error": type(error).__name__,
            "message": str(error),
            "place": _place(error),
            "traceback": traceback.format_exc(),
        }
        with _as_far_as_the_disk_goes(run):
            records.append(run.rank_file(rank), line)
            _note(run, rank, attempt, error, exit_class)
    if rank == 0:
        run.end_attempt(attempt, error.outcome if isinstance(error, Interrupted) else exit_class.name)


def _note(run: RunDirectory, rank: int, attempt: int, error: BaseException, exit_class: ExitClass) -> None:
    """Tell the error, which the command is going to print, what the files of the ranks say."""
    if exit_class is ERROR and rank:
        error.add_note(f"its traceback is in {run.rank_file(rank)}")
    if exit_class is PEER and rank == 0 and not isinstance(error, PeerError):
        # A rank closes its connections after it has written its error, so that it can be read here.
        cause = first_cause(failures(AttemptRecords.read(run)).get(attempt, ()))
        error.add_note(cause.line(run) if cause else "it was killed, or its machine or the network went away")


def _place(error: BaseException) -> str:
    """File and line of the innermost frame of an error that is no library's; empty without one."""
    found = ""
    for frame, line in traceback.walk_tb(error.__traceback__):
        path = Path(frame.f_code.co_filename)
        of_ours = path.relative_to(_CODE).parts[0] in _PACKAGES if path.is_relative_to(_CODE) else False
        of_a_library = "site-packages" in path.parts or path.is_relative_to(Path(os.__file__).parent)
        if of_ours or not of_a_library:
            found = f"{path.parent.name}/{path.name}:{line}"
    return found


@contextmanager
def _as_far_as_the_disk_goes(run: RunDirectory) -> Iterator[None]:
    """Report a line that a full disk cannot store, and raise nothing: that would hide why the run ended."""
    try:
        yield
    except OSError as error:
        log(f"{run.root}: how the attempt ended was not written down: {error}")
