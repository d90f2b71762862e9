"""The errors that end a run, and which of them are about a disk without room.

In: an error. Out: the same one with a place; whether it is about room. Kept: nothing. Torch is not imported, so that
the command line and the records of a run tell these errors apart without it.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from data.disk_error import FULL


class PeerError(RuntimeError):
    """Another rank failed first; its message is the one to read."""


class CheckpointError(RuntimeError):
    """Saving or finding a checkpoint failed for a cause outside the run: disk, rights, damage."""

    def __init__(self, path: Path, reason: str, remedy: str) -> None:
        super().__init__(f"{path}: {reason}; {remedy}")
        self.path = path
        self.reason = reason
        self.remedy = remedy


class StorageError(CheckpointError):
    """The disk does not take a checkpoint, or does not give one; what is on it stays as it is."""


@contextmanager
def placed(path: Path) -> Iterator[None]:
    """An OSError inside is about `path` where it names no file, as those of writing and flushing do not."""
    try:
        yield
    except OSError as error:
        if error.filename is None:
            error.filename = str(path)
        raise


def is_no_room(error: BaseException) -> bool:
    """Whether the disk was full, or what `data.disk_error` made of that."""
    return any(isinstance(each, OSError) and each.errno in FULL for each in (error, error.__cause__))
