"""How an attempt ends: every rank writes its error to its own file, rank 0 writes the attempt's end.

In: an exception. Out: one JSON line in ranks/rank-NNNNN.jsonl and one in attempts.jsonl. Kept: nothing.
"""

import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from data.disk_error import CLOSED
from pretrain.run import records
from pretrain.run.directory import RunDirectory
from pretrain.run.errors import PeerError, StorageError, is_no_room


@contextmanager
def recorded(run: RunDirectory, rank: int, attempt: int, position: Callable[[], dict[str, object]]) -> Iterator[None]:
    """Context of one attempt; an error inside is written down and raised again.

    Args:
        run: where to write.
        rank: number of this process.
        attempt: number of the attempt.
        position: step and phase at the time of the error.
    """
    exit_class = "finished"
    try:
        yield
    except BaseException as error:
        exit_class = _exit_class(error)
        line = {
            "time": records.now(),
            "attempt": attempt,
            "rank": rank,
            "class": exit_class,
            **position(),
            "error": type(error).__name__,
            "message": str(error),
            "traceback": traceback.format_exc(),
        }
        with _as_far_as_the_disk_goes(run):
            records.append(run.rank_file(rank), line)
        raise
    finally:
        if rank == 0:
            with _as_far_as_the_disk_goes(run):
                run.end_attempt(attempt, exit_class)


@contextmanager
def _as_far_as_the_disk_goes(run: RunDirectory) -> Iterator[None]:
    """Report a line that a full disk cannot store, and raise nothing: that would hide why the run ended."""
    try:
        yield
    except OSError as error:
        print(f"{run.root}: how the attempt ended was not written down: {error}", file=sys.stderr, flush=True)


def _exit_class(error: BaseException) -> str:
    if isinstance(error, KeyboardInterrupt):
        return "interrupted"
    if isinstance(error, PeerError):
        return "peer"
    if isinstance(error, StorageError) or is_no_room(error):
        return "storage"
    closed = isinstance(error, OSError) and error.errno in CLOSED
    return "input" if isinstance(error, ValueError) or closed else "error"
