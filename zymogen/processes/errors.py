"""The errors that end a run, and which of them are about a full disk.

In: an error. Out: the same one with a path; whether it is about a full disk. Kept: nothing. Torch is not imported,
so that the command line and the records of a run tell these errors apart without it.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from zymogen.files.durable import FULL


class PeerError(RuntimeError):
    """Another rank failed first; its message is the one to read."""


class RollbackError(RuntimeError):
    """A numerical fault, met for the first time at its step: all ranks start over in new processes, from the disk."""


class ExternalError(RuntimeError):
    """A failure for a cause outside the program, which its message says in a line."""


class CheckpointError(ExternalError):
    """Saving or finding a checkpoint failed for a cause outside the program: disk, rights, damage, replicas.

    Args:
        path: of the place; a URL is one, too.
        reason: what is wrong there.
        remedy: what to do.
    """

    def __init__(self, path: Path | str, reason: str, remedy: str) -> None:
        super().__init__(f"{path}: {reason}; {remedy}")
        self.path = path
        self.reason = reason
        self.remedy = remedy


class StorageError(CheckpointError):
    """The disk cannot store a checkpoint, or cannot return one; what is on it stays as it is."""


@contextmanager
def with_location(path: Path) -> Iterator[None]:
    """Give an OSError that is raised inside the name `path` if it has none: those of writing and flushing lack one."""
    try:
        yield
    except OSError as error:
        if error.filename is None:
            error.filename = str(path)
        raise


def is_disk_full(error: BaseException) -> bool:
    """Whether an error says that the disk is full, by itself or by its cause."""
    return any(isinstance(each, OSError) and each.errno in FULL for each in (error, error.__cause__))
