"""What a disk or a file system refuses, as one line that says what to do.

In: an OSError. Out: a ValueError, or its text. Kept: nothing.
"""

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
"""No room: the disk is full, or a quota or a limit on the size of files is reached."""
CLOSED = frozenset({errno.EACCES, errno.EPERM, errno.EROFS})
"""No right to read or to write there."""
NO_LOCKS = frozenset({errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOLCK})
"""What `flock` answers on a file system without locks."""
STORE_DIR = (
    "choose another data.store_dir; a finished store that lies elsewhere is used where data.sources names its folder"
)


def said(error: OSError) -> str:
    """What went wrong, in words."""
    reason = error.strerror or str(error)
    return f"the disk is full, or a quota or size limit reached ({reason})" if error.errno in FULL else reason


def one_line(error: OSError) -> str:
    """One line on an error that is about rights or room, wherever it came from."""
    where = f"{error.filename}: " if error.filename is not None else ""
    remedy = "free space there" if error.errno in FULL else "get the right to use it, or name another place"
    return f"{where}{said(error)}; {remedy}, and start again"


@contextmanager
def refusal(path: Path, remedy: str = STORE_DIR) -> Iterator[None]:
    """Errors of the disk while `path` is made become a ValueError that says so.

    Args:
        path: what is made.
        remedy: what to do where there is no right to write; without room, it is to free some.
    """
    try:
        yield
    except OSError as error:
        if error.errno in FULL:
            raise ValueError(f"{path}: {said(error)}; nothing of it was kept; free space and start again") from error
        at = Path(error.filename) if isinstance(error.filename, str) else path
        if not (at.is_relative_to(path.parent) or path.is_relative_to(at)):  # something that is read for it
            raise ValueError(f"{error.filename}: {said(error)}; make it readable for this user") from error
        raise ValueError(f"{path}: {said(error)}; {remedy}") from error
