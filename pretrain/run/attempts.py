"""How an attempt ends: every rank writes its error to its own file, rank 0 writes the attempt's end.

In: an exception. Out: one JSON line in ranks/rank-NNNNN.jsonl and one in attempts.jsonl; or, of the first start of a
run, nothing at all if it was refused or stopped before its first step. The files of all ranks tell which error was the
first; the exception gets a note of it, or of the file that has its traceback, for the last words of the command. Kept:
nothing.

An error of the class "error" is recorded in any case, because its files are needed to understand it; so is a
connection that was lost, because a rank that was killed has recorded nothing.
"""

import sys
import traceback
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from pretrain.run import records
from pretrain.run.classes import ERROR, FINISHED, HANG, PEER, ExitClass, class_of, is_of_a_peer
from pretrain.run.directory import RunDirectory
from pretrain.run.errors import PeerError
from pretrain.run.stop import Stopped


class Failure(NamedTuple):
    """An error that a rank wrote down."""

    rank: int
    error: str
    """Name of the exception's class."""
    message: str
    step: int
    phase: str
    exit_class: str
    time: str

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


def failures(run: RunDirectory) -> dict[int, list[Failure]]:
    """All errors of each attempt, the earliest first."""
    found: dict[int, list[Failure]] = {}
    for path in sorted(run.rank_file(0).parent.glob("rank-*.jsonl")):
        for line in records.read(path):
            with suppress(KeyError, TypeError):  # a line that no version writes hides no other
                values = (line[name] for name in ("rank", "error", "message", "step", "phase", "class", "time"))
                found.setdefault(line["attempt"], []).append(Failure(*values))
    return {attempt: sorted(errors, key=lambda each: each.time) for attempt, errors in found.items()}


def first_cause(errors: Iterable[Failure]) -> Failure | None:
    """The first of them that is no consequence of another rank's end."""
    return next((each for each in errors if not each.is_consequence), None)


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
        if isinstance(error, Stopped):
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
    if not isinstance(error, Stopped):
        line = {
            "time": records.now(),
            "attempt": attempt,
            "rank": rank,
            "class": exit_class.name,
            **where,
            "error": type(error).__name__,
            "message": str(error),
            "traceback": traceback.format_exc(),
        }
        with _as_far_as_the_disk_goes(run):
            records.append(run.rank_file(rank), line)
            _note(run, rank, attempt, error, exit_class)
    if rank == 0:
        run.end_attempt(attempt, error.outcome if isinstance(error, Stopped) else exit_class.name)


def _note(run: RunDirectory, rank: int, attempt: int, error: BaseException, exit_class: ExitClass) -> None:
    """Tell the error, which the command is going to print, what the files of the ranks say."""
    if exit_class is ERROR and rank:
        error.add_note(f"its traceback is in {run.rank_file(rank)}")
    if exit_class is PEER and rank == 0 and not isinstance(error, PeerError):
        # A rank closes its connections after it has written its error, so that it can be read here.
        cause = first_cause(failures(run).get(attempt, ()))
        error.add_note(cause.line(run) if cause else "it was killed, or its machine or the network went away")


@contextmanager
def _as_far_as_the_disk_goes(run: RunDirectory) -> Iterator[None]:
    """Report a line that a full disk cannot store, and raise nothing: that would hide why the run ended."""
    try:
        yield
    except OSError as error:
        print(f"{run.root}: how the attempt ended was not written down: {error}", file=sys.stderr, flush=True)
