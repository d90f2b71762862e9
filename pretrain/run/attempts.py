"""How an attempt ends: every rank writes its error to its own file, rank 0 writes the attempt's end.

In: an exception. Out: one JSON line in ranks/rank-NNNNN.jsonl and one in attempts.jsonl; or, of the first start of a
run, nothing at all if it was refused or stopped before its first step. Kept: nothing.

An error of the class "error" is recorded in any case, because its files are needed to understand it; so is a
connection that was lost, because a rank that was killed has recorded nothing.
"""

import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from pretrain.run import records
from pretrain.run.classes import ERROR, FINISHED, PEER, ExitClass, class_of
from pretrain.run.directory import RunDirectory
from pretrain.run.errors import PeerError
from pretrain.run.stop import Stopped


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
    if rank == 0:
        run.end_attempt(attempt, error.outcome if isinstance(error, Stopped) else exit_class.name)


@contextmanager
def _as_far_as_the_disk_goes(run: RunDirectory) -> Iterator[None]:
    """Report a line that a full disk cannot store, and raise nothing: that would hide why the run ended."""
    try:
        yield
    except OSError as error:
        print(f"{run.root}: how the attempt ended was not written down: {error}", file=sys.stderr, flush=True)
