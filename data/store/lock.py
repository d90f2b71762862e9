"""The lock that a builder holds on the folder of its store: across processes and, if the file system can, machines.

In: a folder. Out: nothing. Kept: an empty file; the kernel releases the lock when its holder ends, even if killed.
"""

import fcntl
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from data.store.folder import require_ours
from data.store.token_store import LOCK
from zymogen.files import durable
from zymogen.files.disk_error import STORE_DIR, describe

_POLL_S = 0.1
_MOST_VANISHED = 50
"""How often in a row a folder may vanish just after it was made. Builds that fail remove theirs, but not so often."""


@contextmanager
def locked(folder: Path, waiting: Callable[[], None] | None = None) -> Iterator[None]:
    """Hold the lock of `folder`, which is made if it does not exist; waits while another process holds the lock.

    Args:
        folder: folder of a store.
        waiting: called once if another process holds the lock.

    Raises:
        ValueError: the folder is not ours, it cannot be written to, or its file system has no locks.
    """
    descriptor, vanished = _taken(folder), 0
    if descriptor is None and waiting is not None and folder.exists():
        waiting()
    while descriptor is None:
        vanished = 0 if folder.exists() else vanished + 1
        if vanished == _MOST_VANISHED:
            raise ValueError(f"{folder}: no folder can be made there, or it is gone at once; {STORE_DIR}")
        time.sleep(_POLL_S)
        descriptor = _taken(folder)
    try:
        require_ours(folder)
        yield
    finally:
        os.close(descriptor)


def _taken(folder: Path) -> int | None:
    """A descriptor that holds the lock, or None if another process holds it."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if not (folder / LOCK).exists():  # otherwise a build of ours has worked there, and may be removing its files
            require_ours(folder)
        descriptor = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT, 0o666)
    except FileNotFoundError:  # a build that failed removes its folder
        return None
    except OSError as error:
        raise ValueError(f"{folder}: {describe(error)}; {STORE_DIR}") from None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.path.samestat(os.fstat(descriptor), os.stat(folder / LOCK)):
            return descriptor
    except (BlockingIOError, FileNotFoundError):  # the latter if its holder has removed the folder
        pass
    except OSError as error:
        os.close(descriptor)
        raise ValueError(
            f"{folder}: cannot be locked ({error.strerror or error}), and two builders would write into one store "
            "unseen; choose a data.store_dir on a file system with locks, such as a disk of this machine, or build "
            "there, copy the finished store here and name its folder in data.sources"
        ) from None
    os.close(descriptor)
    return None


def is_held(folder: Path) -> bool:
    """Whether some process is building in `folder`."""
    try:
        return durable.is_held(folder / LOCK) is True  # without locks, no process can build
    except OSError:
        return False
