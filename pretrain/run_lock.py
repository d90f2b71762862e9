"""That one process at a time trains in a run directory.

In: the directory. Out: `RunLock`. Kept: run.lock, whose lock the kernel drops with its holder, however that ends. On a
file system without locks: run.lease, which names its holder and is removed when that ends by itself.
"""

import fcntl
import json
import os
import secrets
import socket
import weakref
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

from data.disk_error import NO_LOCKS
from pretrain.telemetry import records

LOCK, LEASE = "run.lock", "run.lease"


class RunLock:
    """Held until this object, or the process, is gone.

    A lease outlives a process that is killed. It is never taken over: whether its holder lives cannot be known from
    another machine. Two that train all the same, since somebody removed the lease of a process that lived, do not mix
    their checkpoints: `checkpoint.commit` refuses the older attempt.

    Args:
        root: the run directory, which is there.

    Raises:
        ValueError: another process holds it.
        OSError: nothing can be written there.
    """

    def __init__(self, root: Path) -> None:
        self._file: IO[str] = (root / LOCK).open("a")
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ValueError(
                f"{root}: another process trains in this directory; wait for it, or choose another run.directory"
            ) from None
        except OSError as error:
            if error.errno not in NO_LOCKS:
                raise
            self._take_lease(root / LEASE)

    def _take_lease(self, lease: Path) -> None:
        holder = {"host": socket.gethostname(), "pid": os.getpid(), "time": records.now()}
        holder["nonce"] = secrets.token_hex(8)
        try:
            # NFS has no locks where its servers have none, but makes a file for one process alone.
            descriptor = os.open(lease, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
        except FileExistsError:
            raise ValueError(_refusal(lease)) from None
        try:
            with os.fdopen(descriptor, "w") as file:
                file.write(json.dumps(holder) + "\n")
                file.flush()
                os.fsync(file.fileno())
        except BaseException:
            lease.unlink()
            raise
        weakref.finalize(self, _release, lease, holder)


def _release(lease: Path, holder: dict[str, Any]) -> None:
    """Remove a lease that is still this process's own."""
    with suppress(OSError, ValueError):
        if os.getpid() == holder["pid"] and json.loads(lease.read_text()) == holder:
            lease.unlink()


def _refusal(lease: Path) -> str:
    try:
        holder = json.loads(lease.read_text())
        who = f"process {holder['pid']} on {holder['host']}, which started at {holder['time']},"
    except (OSError, ValueError, TypeError, KeyError):
        who = "another process"
    return (
        f"{lease.parent}: {who} trains in this directory, says {lease.name}. The file system has no locks, so the "
        f"lease of a process that was killed stays: if that one is gone, delete {lease} and start again; otherwise "
        "wait for it, or choose another run.directory"
    )
