"""Files and folders that appear whole or not at all: made under another name, flushed to disk, then renamed.

In: a path. Out: an empty file or folder to fill; of an error of the disk, a line that tells the user what to do. Kept:
what was filled, with the modes of the user's umask; nothing if filling fails.

`new_dir` makes a folder and `replacing_file` a file in a place that other processes may write to as well. Meanwhile a
folder ``.NAME-TOKEN`` and a file ``.NAME-TOKEN.lock`` stand beside it, where TOKEN is 16 random digits. If a process is
killed, the next one that publishes there removes them. `write_atomic` replaces a small file of a folder that only this
process writes to, as it holds the folder's lock: beside it stands ``.NAME.zymogen-new`` for a moment. Blocks that use
`exclusive_lock` with one folder follow each other. `write_error` turns an error of the disk into one line that tells
the user what to do.
"""

import csv
import errno
import fcntl
import json
import os
import re
import secrets
import shutil
import socket
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
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


FORMAT = "zymogen.workspace/1"
_LOCK_NAME = re.compile(r"\..+-[0-9a-f]{16}\.lock")
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_ABANDONED_S = 7 * 24 * 3600
"""A workspace of another machine is abandoned if nothing in it has changed for this time."""


@contextmanager
def new_dir(folder: Path) -> Iterator[Path]:
    """An empty folder beside `folder` that takes its name when the block ends without an error.

    If another process publishes the same folder first, that one stays. Missing parent folders are made.

    Raises:
        ValueError: it cannot be written, for want of permission or space.
    """
    with write_error(folder):
        folder.parent.mkdir(parents=True, exist_ok=True)
    with workspace(folder) as building, write_error(folder):
        yield building
        for path in building.iterdir():
            flush(path)
        flush(building)
        try:
            building.rename(folder)
        except OSError:
            if not folder.is_dir():  # otherwise another process was faster
                raise
        flush(folder.parent)


@contextmanager
def replacing_file(path: Path, remedy: str = STORE_DIR) -> Iterator[Path]:
    """A path to write a file to, which takes the place of `path` when the block ends without an error.

    Args:
        path: path of the file, in an existing folder.
        remedy: what an error tells the user to do if there is no permission to write.

    Raises:
        ValueError: it cannot be written, for want of permission or space.
    """
    with workspace(path, remedy) as work, write_error(path, remedy):
        yield work / "new"
        _put(work / "new", path)


@contextmanager
def exclusive_lock(folder: Path) -> Iterator[None]:
    """Wait until no other process is in such a block with this folder, which exists, if its file system has locks.

    Raises:
        OSError: the folder cannot be opened.
    """
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        with suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def write_csv(path: Path, lines: Iterable[Iterable[object]], remedy: str = STORE_DIR) -> None:
    """Replace a table of text, with tabs where its suffix is .tsv and commas otherwise.

    Args:
        path: path of the file, in an existing folder.
        lines: the cells of each line, of the header first; they are asked for while the file is written.
        remedy: as for `replacing_file`.

    Raises:
        ValueError: it cannot be written, for want of permission or space.
    """
    delimiter = "\t" if path.suffix.lower() == ".tsv" else ","
    with replacing_file(path, remedy) as new, new.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file, delimiter=delimiter, lineterminator="\n").writerows(lines)


def write_atomic(path: Path, text: str, *, private: bool = False) -> None:
    """Replace a file of a folder that only this process writes to; it is on disk when this returns.

    Args:
        path: of the file.
        text: its content.
        private: whether only its owner may read it, whatever the umask.

    Raises:
        OSError: it cannot be written; the old one is untouched, unless only the last fsync failed, that of the folder:
            then the new one is there, but a power cut could take it. Another call writes a file of its own.
    """
    temporary = write_then_rename(path)
    try:
        if private:
            temporary.touch(0o600)
            temporary.chmod(0o600)  # one that a killed process left
        temporary.write_text(text, encoding="utf-8")
        _put(temporary, path)
    except BaseException as error:
        if isinstance(error, OSError):  # one of a write names no file
            error.filename = str(path)
        temporary.unlink(missing_ok=True)
        raise


def write_then_rename(path: Path) -> Path:
    """The path that `write_atomic` writes to before it replaces `path`."""
    return path.with_name(f".{path.name.lstrip('.')}.zymogen-new")


def _put(finished: Path, path: Path) -> None:
    """Flush a finished file and rename it to `path`."""
    flush(finished)
    os.replace(finished, path)
    flush(path.parent)


@contextmanager
def workspace(path: Path, remedy: str = STORE_DIR) -> Iterator[Path]:
    """An empty folder beside `path`; removed when the block ends, unless it was renamed.

    Raises:
        ValueError: it cannot be made.
    """
    folder = path.with_name(f".{path.name}-{secrets.token_hex(8)}")
    lock = folder.with_name(f"{folder.name}.lock")
    _sweep(path.parent)
    with write_error(path, remedy):
        descriptor = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o666)
    try:
        with write_error(path, remedy):
            _describe(descriptor, folder.name)
            folder.mkdir()
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        with suppress(OSError):
            lock.unlink()  # last, as it is what shows that the folder is ours
        os.close(descriptor)


def flush(path: Path) -> None:
    """Wait until a closed file or a folder is on disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _describe(descriptor: int, name: str) -> None:
    """Lock the file of a workspace, if the file system can, and then write into it which process holds it."""
    locked = take_lock(descriptor, fcntl.LOCK_EX)  # waits for a process that is just reading it
    holder = {"machine": machine(), "host": socket.gethostname(), "pid": os.getpid(), "locked": locked}
    os.write(descriptor, json.dumps({"format": FORMAT, "folder": name, **holder}).encode())


def take_lock(descriptor: int, how: int) -> bool:
    """Lock a file; False where its file system has no locks.

    Raises:
        OSError: it cannot be locked; a `BlockingIOError`: another process holds it, and `how` does not wait.
    """
    try:
        fcntl.flock(descriptor, how)
    except OSError as error:
        if error.errno not in NO_LOCKS:
            raise
        return False
    return True


def is_held(lock: Path) -> bool | None:
    """Whether a process holds a file that it locks; None where its file system has no locks. Nothing stays of asking.

    Raises:
        OSError: it cannot be read.
    """
    with lock.open() as file:
        try:
            # Shared, so that two that ask do not see each other.
            return False if take_lock(file.fileno(), fcntl.LOCK_SH | fcntl.LOCK_NB) else None
        except BlockingIOError:
            return True


def machine() -> str:
    """A name that no other machine has, and that changes when this machine is started again."""
    with suppress(OSError):
        return _BOOT_ID.read_text().strip()
    return socket.gethostname()


def _sweep(parent: Path) -> None:
    """Remove the workspaces in a folder whose processes have ended."""
    names: list[str] = []
    with suppress(OSError):
        names = os.listdir(parent)
    for name in filter(_LOCK_NAME.fullmatch, names):
        with suppress(OSError):  # held, another user's, or gone
            _sweep_one(parent / name)


def _sweep_one(lock: Path) -> None:
    descriptor = os.open(lock, os.O_RDWR | os.O_NOFOLLOW)
    try:
        # If not, that is not known: locks do not work here, but may work where its holder runs.
        is_free = take_lock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        folder = lock.with_suffix("")
        if _is_abandoned(os.read(descriptor, 4096), folder, lock, is_free=is_free):
            shutil.rmtree(folder, ignore_errors=True)
            if not os.path.lexists(folder):
                lock.unlink()
    finally:
        os.close(descriptor)


def _is_abandoned(content: bytes, folder: Path, lock: Path, *, is_free: bool) -> bool:
    """Whether a workspace that no process seems to hold is ours, and its process has certainly ended.

    A free lock proves it on the machine where the lock was taken. A file system may not know the locks of another
    machine, or its lock server may be down: then the workspace must also be unchanged for a week.
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


def describe_os_error(error: OSError) -> str:
    """What went wrong, in plain words."""
    reason = error.strerror or str(error)
    return f"the disk is full, or a quota or size limit reached ({reason})" if error.errno in FULL else reason


def format_os_error(error: OSError) -> str:
    """One line about an error of `FULL` or `CLOSED`, with the file's name and what to do."""
    where = f"{error.filename}: " if error.filename is not None else ""
    remedy = "free space there" if error.errno in FULL else "get the right to use it, or name another place"
    return f"{where}{describe_os_error(error)}; {remedy}, and start again"


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
                f"{path}: {describe_os_error(error)}; nothing of it was kept; free space and start again"
            ) from error
        at = Path(error.filename) if isinstance(error.filename, str) else path
        if not (at.is_relative_to(path.parent) or path.is_relative_to(at)):  # a file that is read to make `path`
            raise ValueError(f"{error.filename}: {describe_os_error(error)}; make it readable for this user") from error
        raise ValueError(f"{path}: {describe_os_error(error)}; {remedy}") from error


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
