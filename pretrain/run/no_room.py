"""A disk without room, as a run meets it outside its checkpoints: told with its place, and told from other errors.

In: an error. Out: the same one with a place; whether it is about room. Kept: nothing.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from data.disk_error import FULL


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
