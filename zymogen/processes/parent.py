"""Processes that end with the one that started them, even where that one is killed and can say nothing.

In: the process that started this one; or a program to run. Out: the end of this process; or what the program printed.
Kept: a thread that looks. Imports nothing of this project, as the guard of a program is this file alone.

The kernel's own way (`signal_at_its_end`) works at once and in every state of a process, but only on Linux, and what it
follows is the thread that started the process, not its parent as a whole. The other ways look five times a second.
"""

import ctypes
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

WATCH_S = 0.2
_PR_SET_PDEATHSIG = 1


def signal_at_its_end(by: signal.Signals) -> bool:
    """Have the kernel send a signal to this process when the thread that started it ends; False if it cannot.

    A parent that had ended before is not noticed: compare `os.getppid()` afterwards.
    """
    try:
        return bool(ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(by), 0, 0, 0) == 0)
    except (AttributeError, OSError):
        return False


def end_with(parent: int) -> None:
    """Have a thread end this process, with status 3, as soon as `parent` is not its parent, or no longer."""
    threading.Thread(target=_end_with, args=(parent,), name="parent", daemon=True).start()


def _end_with(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(WATCH_S)
    os._exit(3)


def run(words: Sequence[str], cwd: Path) -> "subprocess.CompletedProcess[bytes]":
    """Run a program, which may start others; all of them end when this process does, or is interrupted here.

    The program's parent is a guard, a small process that watches this one: programs that are not ours watch nobody.

    Args:
        words: the program and its arguments.
        cwd: the folder in which it runs.

    Returns:
        With standard output and error together; the status is 128 and the signal if one ended it.
    """
    guard = subprocess.Popen(
        [sys.executable, "-IS", __file__, str(os.getpid()), *words],
        cwd=cwd,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,  # so that all of them are in one group
    )
    try:
        said, _ = guard.communicate()
    except BaseException:
        with suppress(ProcessLookupError):
            os.killpg(guard.pid, signal.SIGKILL)
        guard.wait()
        raise
    return subprocess.CompletedProcess(list(words), guard.returncode, said)


def _guard() -> int:
    """Run the program of the command line, and end the group of both when the process that is named first has ended."""
    parent, words = int(sys.argv[1]), sys.argv[2:]
    program = subprocess.Popen(words)
    while True:
        with suppress(subprocess.TimeoutExpired):
            status = program.wait(WATCH_S)
            return status if status >= 0 else 128 - status
        if os.getppid() != parent:
            os.killpg(0, signal.SIGKILL)


if __name__ == "__main__":
    sys.exit(_guard())
