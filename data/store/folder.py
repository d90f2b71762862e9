"""The folder that a build works in: whether it is ours, who builds, and which files are removed when a build ends.

In: a folder. Out: nothing, or an error. Kept: every file that no build of ours has made. While a build runs, it
locks an empty file; the kernel releases the lock when its holder ends, even if killed. The lock holds between processes
and, where the file system supports it, between machines.

A folder is ours if it has our journal or our store.json. The journal is written into the empty folder before any other
file of a build, and removed after all others: wherever a build is killed, the next one can tell its files from those of
the user. No other program uses names that begin with ".zymogen-" or end with ".zymogen-new".
"""

import fcntl
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from data.store.journal import FAILED, JOURNAL, BuildJournal, write_journal
from data.store.token_store import FACTS, LOCK, REJECTED, StoreCounts, is_of_a_store
from zymogen.files import durable
from zymogen.files.durable import STORE_DIR, describe_os_error, write_then_rename
from zymogen.settings.section import listed

_ARRAYS = (*StoreCounts().file_sizes(), REJECTED)
_WRITTEN_BESIDE = tuple(write_then_rename(Path(name)).name for name in (JOURNAL, FACTS, FAILED))
_OURS_BY_NAME = frozenset({LOCK, FAILED, *_WRITTEN_BESIDE})


def require_ours(folder: Path) -> None:
    """Refuse a folder that is neither new, nor empty, nor one that a build of ours has begun or finished.

    Raises:
        ValueError: it holds files that are not ours, and neither a journal nor a store.json that is.
    """
    try:
        names = set(os.listdir(folder))
    except (FileNotFoundError, NotADirectoryError):  # the latter is reported when something is written there
        return
    except OSError as error:
        raise ValueError(f"{folder}: {error.strerror or error}; choose another folder") from None
    # On NFS, a file that was removed while it was open has a name that begins with ".nfs".
    foreign = sorted(name for name in names - _OURS_BY_NAME if not name.startswith(".nfs"))
    # Checked in this order: a build writes store.json before it removes the journal, and may end in between.
    if foreign and not _is_ours(folder / JOURNAL) and not _is_ours(folder / FACTS):
        raise ValueError(
            f"{folder} is not empty and no token store: it holds {listed(foreign, 3)}; choose a folder "
            "that is empty or not there yet (--output, data.store_dir); nothing in this one was touched"
        )


def discard(folder: Path, keep: Sequence[str] = ()) -> None:
    """Remove what a build made in `folder`, and the folder if nothing else is in it; the caller holds its lock.

    Args:
        folder: folder of a build. In a folder that is not ours, only files with names that are ours are removed.
        keep: names of files that stay; the journal then stays too, to show that they are ours.
    """
    if _is_ours(folder / JOURNAL) or _is_ours(folder / FACTS):
        if not (folder / JOURNAL).exists() or _is_ours(folder / JOURNAL):
            with suppress(OSError):  # a full disk; what is removed below makes room
                write_journal(folder, BuildJournal(key=""))  # its old counts would be wrong if this is killed halfway
        if _is_ours(folder / FACTS):
            (folder / FACTS).unlink()
        for name in _ARRAYS:
            if name not in keep:
                (folder / name).unlink(missing_ok=True)
    if keep:
        return
    remove_journal(folder)
    for name in (FAILED, *_WRITTEN_BESIDE, LOCK):
        (folder / name).unlink(missing_ok=True)
    with suppress(OSError):
        folder.rmdir()


def remove_journal(folder: Path) -> None:
    """Remove the journal of a build, if it is ours."""
    if _is_ours(folder / JOURNAL):
        (folder / JOURNAL).unlink()


def _is_ours(path: Path) -> bool:
    try:
        return path.is_file() and is_of_a_store(path.read_bytes())
    except OSError:  # it cannot be read, so it is not known to be ours
        return False


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
        raise ValueError(f"{folder}: {describe_os_error(error)}; {STORE_DIR}") from None
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
