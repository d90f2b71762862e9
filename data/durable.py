"""Files and folders that are whole or not there: made under another name, flushed to disk, then renamed.

In: where it shall be. Out: something empty to fill. Kept: nothing where filling fails; what is published has the modes
that the user's umask gives.

`published` makes a folder and `replaced` a file in a place that other processes may write to as well. While it is made,
a folder ``.NAME-TOKEN`` and a file ``.NAME-TOKEN.lock`` stand beside it, TOKEN being 16 random digits. What a killed
process left of these is removed by the next one that publishes there. `write_whole` replaces a small file of a folder
that this process alone writes to, whose lock it holds: beside it stands ``.NAME.zymogen-new`` for a moment.
"""

import fcntl
import json
import os
import re
import secrets
import shutil
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from data.disk_error import NO_LOCKS, STORE_DIR, refusal

FORMAT = "zymogen.workspace/1"
_LOCK_NAME = re.compile(r"\..+-[0-9a-f]{16}\.lock")
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_ABANDONED_S = 7 * 24 * 3600
"""How long nothing may have changed in what another machine left, before it is taken for abandoned."""


@contextmanager
def published(folder: Path) -> Iterator[Path]:
    """An empty folder beside `folder` that takes its name when the block ends without an error.

    Where another process publishes the same folder first, that one stays. Parents are made if need be.

    Raises:
        ValueError: it cannot be written: no right, no room.
    """
    with refusal(folder):
        folder.parent.mkdir(parents=True, exist_ok=True)
    with workspace(folder) as building, refusal(folder):
        yield building
        for path in building.iterdir():
            flush(path)
        flush(building)
        try:
            building.rename(folder)
        except OSError:
            if not folder.is_dir():  # else: another process was faster
                raise
        flush(folder.parent)


@contextmanager
def replaced(path: Path, remedy: str = STORE_DIR) -> Iterator[Path]:
    """Where to write a file, which takes the place of `path` when the block ends without an error.

    Args:
        path: of the file, in a folder that is there.
        remedy: what an error says is to do where there is no right to write.

    Raises:
        ValueError: it cannot be written: no right, no room.
    """
    with workspace(path, remedy) as work, refusal(path, remedy):
        yield work / "new"
        _put(work / "new", path)


def write_whole(path: Path, text: str) -> None:
    """Replace a file of a folder that this process alone writes to; it is on disk when this returns.

    Raises:
        OSError: it cannot be written; the old one is untouched.
    """
    temporary = written_beside(path)
    try:
        temporary.write_text(text, encoding="utf-8")
        _put(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def written_beside(path: Path) -> Path:
    """What `write_whole` writes before it takes the place of `path`."""
    return path.with_name(f".{path.name.lstrip('.')}.zymogen-new")


def _put(finished: Path, path: Path) -> None:
    """Give a file that is written the name `path`, for good."""
    flush(finished)
    os.replace(finished, path)
    flush(path.parent)


@contextmanager
def workspace(path: Path, remedy: str = STORE_DIR) -> Iterator[Path]:
    """An empty folder beside `path`, removed in the end if it is still there.

    Raises:
        ValueError: none can be made.
    """
    folder = path.with_name(f".{path.name}-{secrets.token_hex(8)}")
    lock = _lock_of(folder)
    _sweep(path.parent)
    with refusal(path, remedy):
        descriptor = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o666)
    try:
        with refusal(path, remedy):
            _describe(descriptor, folder.name)
            folder.mkdir()
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        with suppress(OSError):
            lock.unlink()  # last, as nobody would know whose a folder without it is
        os.close(descriptor)


def flush(path: Path) -> None:
    """Have a closed file or a folder on disk before going on."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _lock_of(folder: Path) -> Path:
    return folder.with_name(f"{folder.name}.lock")


def _describe(descriptor: int, name: str) -> None:
    """Lock the file of a workspace, where the file system can, and then say in it whose it is."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)  # waits for one who looks into it
        locked = True
    except OSError as error:
        if error.errno not in NO_LOCKS:
            raise
        locked = False
    holder = {"machine": machine(), "host": socket.gethostname(), "pid": os.getpid(), "locked": locked}
    os.write(descriptor, json.dumps({"format": FORMAT, "folder": name, **holder}).encode())


def machine() -> str:
    """What no other machine is called, and not this one either after its next start."""
    with suppress(OSError):
        return _BOOT_ID.read_text().strip()
    return socket.gethostname()


def _sweep(parent: Path) -> None:
    """Remove the workspaces in a folder whose processes are gone."""
    names: list[str] = []
    with suppress(OSError):
        names = os.listdir(parent)
    for name in filter(_LOCK_NAME.fullmatch, names):
        with suppress(OSError):  # held, another user's, or gone
            _sweep_one(parent / name)


def _sweep_one(lock: Path) -> None:
    descriptor = os.open(lock, os.O_RDWR | os.O_NOFOLLOW)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            is_free = True
        except OSError as error:
            if error.errno not in NO_LOCKS:
                raise
            is_free = False  # which nobody can tell here and now, though its holder may have locked it
        folder = lock.with_suffix("")
        if _is_abandoned(os.read(descriptor, 4096), folder, lock, is_free=is_free):
            shutil.rmtree(folder, ignore_errors=True)
            if not os.path.lexists(folder):
                lock.unlink()
    finally:
        os.close(descriptor)


def _is_abandoned(content: bytes, folder: Path, lock: Path, *, is_free: bool) -> bool:
    """Whether a workspace that nobody seems to hold is one of ours, and its process is gone for certain.

    A lock that is free says so on the machine where it was taken. Of another machine's locks a file system may know
    nothing, and a lock server that is away tells of none: there it must also have stood still for a week.
    """
    try:
        said = json.loads(content)
        if said["format"] != FORMAT or said["folder"] != folder.name:
            return False
        if is_free and said["locked"] and said["machine"] == machine():
            return True
    except (ValueError, TypeError, KeyError):
        return False
    paths = [lock, folder, *folder.rglob("*")]
    latest = max(path.lstat().st_mtime for path in paths if os.path.lexists(path))
    return time.time() - latest > _ABANDONED_S
