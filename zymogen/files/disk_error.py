"""Errors of a disk or a file system, as one line that tells the user what to do.

In: an OSError, or the error that safetensors makes of one. Out: a ValueError, or its text. Kept: nothing.
"""

import errno
import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
"""Errors for want of space: the disk is full, or a quota or a limit on the size of files is reached."""
CLOSED = frozenset({errno.EACCES, errno.EPERM, errno.EROFS})
"""Errors for want of permission to read or write."""
NO_LOCKS = frozenset({errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOLCK})
"""Errors of `flock` on a file system without locks."""
STORE_DIR = (
    "choose another data.store_dir; a finished store that lies elsewhere is used where data.sources names its folder"
)


def describe(error: OSError) -> str:
    """What went wrong, in plain words."""
    reason = error.strerror or str(error)
    return f"the disk is full, or a quota or size limit reached ({reason})" if error.errno in FULL else reason


def one_line(error: OSError) -> str:
    """One line about an error of `FULL` or `CLOSED`, with the file's name and what to do."""
    where = f"{error.filename}: " if error.filename is not None else ""
    remedy = "free space there" if error.errno in FULL else "get the right to use it, or name another place"
    return f"{where}{describe(error)}; {remedy}, and start again"


@contextmanager
def write_error(path: Path, remedy: str = STORE_DIR) -> Iterator[None]:
    """Turn an OSError that is raised while `path` is made into a ValueError that tells the user what to do.

    Args:
        path: the file or folder that is made.
        remedy: what to do if there is no permission to write; without space, it is to free some.
    """
    try:
        with _os_errors():
            yield
    except OSError as error:
        if error.errno in FULL:
            raise ValueError(
                f"{path}: {describe(error)}; nothing of it was kept; free space and start again"
            ) from error
        at = Path(error.filename) if isinstance(error.filename, str) else path
        if not (at.is_relative_to(path.parent) or path.is_relative_to(at)):  # a file that is read to make `path`
            raise ValueError(f"{error.filename}: {describe(error)}; make it readable for this user") from error
        raise ValueError(f"{path}: {describe(error)}; {remedy}") from error


@contextmanager
def _os_errors() -> Iterator[None]:
    """Raise an error of the operating system as itself where safetensors reports it in words."""
    try:
        yield
    except Exception as error:
        library = sys.modules.get("safetensors")  # not imported here: reading a store needs NumPy alone
        is_its_own = library is not None and isinstance(error, library.SafetensorError)
        if is_its_own and (found := re.search(r"\(os error (\d+)\)", str(error))):
            number = int(found[1])
            raise OSError(number, os.strerror(number)) from error
        raise
