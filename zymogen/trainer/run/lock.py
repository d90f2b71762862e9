"""The lock that lets only one process at a time train in a run directory.

In: the directory. Out: `RunLock`; whether a process holds it. Kept: run.lock, whose lock the kernel releases when its
holder ends, for whatever reason. On a file system without locks: run.lease, which names its holder. The holder removes
it at its end, and another process takes it over if the holder is certainly gone.
"""

import fcntl
import json
import os
import secrets
import socket
import time
import weakref
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

import psutil

from zymogen.files import durable
from zymogen.files.durable import NO_LOCKS, machine, write_then_rename
from zymogen.trainer.run import records

LOCK, LEASE = "run.lock", "run.lease"
_MOMENT_S = 0.1
"""For how long a lock is waited for: a process that asks whether it is held takes it for less than that."""


class RunLock:
    """Held until this object, or the process, is gone.

    A lease outlives a process that is killed. The next process on the same machine sees that its holder is gone, and
    takes it over. From another machine, after a restart or from another container it cannot see that, and is refused.
    If two processes do train, because somebody removed the lease of a living one, their checkpoints do not mix:
    `checkpoint.commit` refuses the older attempt.

    Args:
        root: the run directory, which exists.

    Raises:
        ValueError: another process holds it.
        OSError: nothing can be written there.
    """

    def __init__(self, root: Path) -> None:
        self._file: IO[str] = (root / LOCK).open("a")
        try:
            try:
                fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:  # by one that trains, or by one that asks
                time.sleep(_MOMENT_S)
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
        holder: dict[str, Any] = {"host": socket.gethostname(), "pid": os.getpid(), "time": records.now(), **_place()}
        holder |= {"started": _started(os.getpid()), "nonce": secrets.token_hex(8)}
        try:
            _create(lease, holder)
        except FileExistsError:
            if not _taken_over(lease, holder):
                raise ValueError(_refusal(lease)) from None
        weakref.finalize(self, _release, lease, holder)


def is_held(root: Path) -> bool:
    """Whether a process trains in a run directory, or may for all that can be seen from here; nothing stays of asking.

    Raises:
        OSError: it cannot be read.
    """
    if not (root / LOCK).exists():
        return False
    held = durable.is_held(root / LOCK)
    return (root / LEASE).exists() and not _is_gone(root / LEASE) if held is None else held


def _create(path: Path, holder: dict[str, Any]) -> None:
    """Write a file that does not exist yet; it is on disk when this returns."""
    # NFS without a lock service still lets only one process create a file.
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
    try:
        with os.fdopen(descriptor, "w") as file:
            file.write(json.dumps(holder) + "\n")
            file.flush()
            os.fsync(file.fileno())
    except BaseException:
        path.unlink()
        raise


def _taken_over(lease: Path, holder: dict[str, Any]) -> bool:
    """Put `holder` in the place of one that is gone; False if that may live, or if another process is faster."""
    if not _is_gone(lease):
        return False
    coming = write_then_rename(lease)
    try:
        _create(coming, holder)
    except FileExistsError:  # another process is replacing the lease
        return False
    try:
        if _is_gone(lease):  # checked again: another process may have replaced it since
            os.replace(coming, lease)
            return True
    except BaseException:
        coming.unlink()
        raise
    coming.unlink()
    return False


def _is_gone(lease: Path) -> bool:
    """Whether the holder of a lease is gone for certain: this process would see it, and does not."""
    try:
        holder = json.loads(lease.read_text())
        here = _place()
        if None in here.values() or any(holder[name] != value for name, value in here.items()):
            return False
        os.kill(holder["pid"], 0)
        return bool(_started(holder["pid"]) != holder["started"])
    except ProcessLookupError:
        return True
    except (OSError, ValueError, TypeError, KeyError, psutil.Error):
        return False  # another user's process, or a lease that is incomplete or missing


def _place() -> dict[str, str | None]:
    """Where process ids mean the same: the machine since its last start, and in it the container."""
    namespace = None
    with suppress(OSError):
        namespace = os.readlink("/proc/self/ns/pid")
    return {"machine": machine(), "pid_namespace": namespace}


def _started(pid: int) -> float | None:
    """Seconds from the machine's start to the process's, which setting the clock does not change; None of a zombie."""
    process = psutil.Process(pid)
    if process.status() == psutil.STATUS_ZOMBIE:
        return None
    return round(float(process.create_time() - psutil.boot_time()), 2)


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
        f"{lease.parent}: {who} trains in this directory, according to {lease.name}. The file system has no "
        f"locks, and this process cannot see whether that one is gone: if it is, delete {lease} and start "
        "again; otherwise wait for it, or choose another run.directory"
    )
