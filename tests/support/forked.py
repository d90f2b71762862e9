"""Work done in a forked copy of this process, warm and with what it holds.

As it is, without root's rights, or with system calls that the kernel refuses: so that the program meets the error of a
disk where it would, at the call itself.
"""

import ctypes
import errno
import itertools
import os
import platform
import shutil
import sys
import tempfile
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest import mock

import torch

NOBODY = 65534
NO_FILTER = 77
"""Exit status of a child that may not filter its calls."""
_CAPABILITIES = 1 << 1 | 1 << 2  # CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH: to read and write whatever the modes say
_DROP_FROM_BOUND, _VERSION_3 = 24, 0x20080522


def forked(work: Callable[[], object]) -> int:
    """Run `work` in a copy of this process; its exit status is 0 if it returned, and 1 if it raised."""
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()
    if pid:
        return pid
    status = 1
    try:
        torch.set_num_threads(1)  # OpenMP's threads did not survive the fork
        work()
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def status_of(pid: int) -> int:
    """The exit status of a child, or minus the signal that ended it."""
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def in_process(work: Callable[[], object], folder: Path | None = None) -> int:
    """Do it in a copy of this process; its exit status, or minus the signal that ended it.

    Args:
        work: what to do.
        folder: if given, it is done there, by another user where this one is root, who may do anything.
    """

    def there() -> None:
        if folder is not None:
            folder.chmod(0o755)
            os.chdir(folder)  # whose parents only this user may enter
            if os.geteuid() == 0:
                os.seteuid(NOBODY)
        work()

    return status_of(forked(there))


@contextmanager
def public_folder() -> Iterator[Path]:
    """A folder that every user may enter, as pytest's own is private."""
    folder = Path(tempfile.mkdtemp(prefix="zymogen-test-"))
    try:
        folder.chmod(0o755)
        yield folder
    finally:
        shutil.rmtree(folder)


def opened_again(folder: Path) -> None:
    """Let the test's own folder be removed."""
    folder.chmod(0o755)
    for path in folder.iterdir():
        if path.is_dir() and not path.is_symlink():
            opened_again(path)


def without_rights(work: Callable[[], object], user: int | None = None) -> int:
    """Do it with no more rights than modes give; 0, or 1 if it raised.

    Args:
        work: what `user` does must have been imported before: the interpreter may lie where only root can read.
        user: whose name to take if this is root; None is to keep root's, without its power over all files.
    """

    def as_user() -> None:
        if os.geteuid() == 0:
            _become(user)
        work()

    return status_of(forked(as_user))


def _become(user: int | None) -> None:
    if user is not None:
        os.setgroups([])
        os.setresgid(user, user, user)
        os.setresuid(user, user, user)
        return
    libc = ctypes.CDLL(None, use_errno=True)
    for number in (1, 2):  # also of the processes that it starts
        assert libc.prctl(_DROP_FROM_BOUND, number, 0, 0, 0) == 0
    header, held = (ctypes.c_uint32 * 2)(_VERSION_3, 0), (ctypes.c_uint32 * 6)()
    assert libc.capget(header, held) == 0
    for place in range(3):  # effective, permitted, inheritable; of the first 32 capabilities
        held[place] &= ~_CAPABILITIES
    assert libc.capset(header, held) == 0


# Calls that the kernel refuses ---------------------------------------------------------------------

_NUMBERS = {"x86_64": {"fsync": 74}, "aarch64": {"fsync": 82}}
_NO_NEW_PRIVILEGES, _SECCOMP, _BY_FILTER = 38, 22, 2
_LOAD_NUMBER, _IF_EQUAL, _RETURN = 0x20, 0x15, 0x06
_REFUSE, _ALLOW = 0x0005_0000, 0x7FFF_0000


class _Instruction(ctypes.Structure):
    _fields_ = (("code", ctypes.c_ushort), ("yes", ctypes.c_ubyte), ("no", ctypes.c_ubyte), ("value", ctypes.c_uint32))


class _Filter(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("first", ctypes.POINTER(_Instruction)))


def refuse(call: str, error: int) -> bool:
    """Have the kernel answer every later `call` of this thread with `error`, by seccomp.

    Returns:
        False where it takes no filters.
    """
    number = _NUMBERS.get(platform.machine(), {}).get(call)
    if number is None:
        return False
    steps = (_Instruction * 4)(
        _Instruction(_LOAD_NUMBER, 0, 0, 0),
        _Instruction(_IF_EQUAL, 0, 1, number),
        _Instruction(_RETURN, 0, 0, _REFUSE | error),
        _Instruction(_RETURN, 0, 0, _ALLOW),
    )
    filters = _Filter(len(steps), steps)
    libc = ctypes.CDLL(None, use_errno=True)
    zero = ctypes.c_ulong(0)
    if libc.prctl(_NO_NEW_PRIVILEGES, ctypes.c_ulong(1), zero, zero, zero):
        return False
    return libc.prctl(_SECCOMP, ctypes.c_ulong(_BY_FILTER), ctypes.byref(filters), zero, zero) == 0


class RefusedFlushes:
    """Flushes to disk that the kernel refuses; a file of which one was refused must not be flushed again.

    For a forked copy of this process. Once one is refused, a second one may succeed although pages were lost. A folder
    may be flushed again, once a name in it has changed.
    """

    def __init__(self) -> None:
        self.held: list[int] = []
        """Of each file or folder whose flush was refused; open, so that no other file is given its number."""

    def during(self, work: Callable[[], object], fatal: int) -> list[BaseException]:
        """What `work` raised, if anything, when its flush of this number, from 1, and all later ones were refused."""
        fsync, calls, raised = os.fsync, itertools.count(1), list[BaseException]()

        def watched(handle: int) -> None:
            if next(calls) == fatal and not refuse("fsync", errno.EIO):
                os._exit(NO_FILTER)
            again = any(os.path.samestat(os.fstat(handle), os.fstat(held)) for held in self.held)
            assert not again or os.path.isdir(f"/proc/self/fd/{handle}"), "the kernel may have lost its pages"
            try:
                fsync(handle)
            except OSError:
                self.held.append(os.dup(handle))
                raise

        def try_it() -> None:
            with mock.patch.object(os, "fsync", watched):
                try:
                    work()
                except BaseException as error:
                    raised.append(error)

        thread = threading.Thread(target=try_it)  # whose filter ends with it
        thread.start()
        thread.join()
        return raised
