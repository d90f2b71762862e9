"""The lock that lets only one process at a time train in a run directory.

In: the directory. Out: `RunLock`; whether a process holds it. Kept: run.lock, whose lock the kernel releases when its
holder ends, for whatever reason. On a file system without locks nothing is held, and the run says so.
"""

import fcntl
import time
from pathlib import Path
from typing import IO

from zymogen.console.safe_text import log
from zymogen.files import durable
from zymogen.files.durable import take_lock

LOCK = "run.lock"
_MOMENT_S = 0.1
"""For how long a lock is waited for: a process that asks whether it is held takes it for less than that."""


class RunLock:
    """Held until this object, or the process, is gone.

    If two processes do train, on a file system without locks, their checkpoints do not mix: `checkpoint.commit` refuses
    the older attempt.

    Args:
        root: the run directory, which exists.

    Raises:
        ValueError: another process holds it.
        OSError: nothing can be written there.
    """

    def __init__(self, root: Path) -> None:
        self._file: IO[str] = (root / LOCK).open("a")
        try:
            is_held = self._take()
        except BlockingIOError:  # by one that trains, or by one that asks
            time.sleep(_MOMENT_S)
            try:
                is_held = self._take()
            except BlockingIOError:
                raise ValueError(
                    f"{root}: another process trains in this directory; wait for it, or choose another run.directory"
                ) from None
        if not is_held:
            log(f"{root}: its file system has no locks; see to it that no other process trains in this directory")

    def _take(self) -> bool:
        return take_lock(self._file.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)


def is_held(root: Path) -> bool:
    """Whether a process trains in a run directory, as far as its file system has locks; nothing stays of asking.

    Raises:
        OSError: it cannot be read.
    """
    return (root / LOCK).exists() and durable.is_held(root / LOCK) is True
