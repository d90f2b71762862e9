"""The process of a command: it ends with its launcher, and after a rollback it is replaced by a fresh one.

In: the `main` of a command. Out: its exit status. Kept: nothing; what the fresh process needs is on disk.

The fresh process has the id of the one before, so that a launcher does not notice. Memory, threads and devices of the
old one are gone: the kernel ends them.
"""

import os
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import NoReturn

import psutil

from zymogen.processes.errors import RollbackError
from zymogen.processes.exit_classes import class_of
from zymogen.processes.launcher import end_with_the_launcher, forward_exit_status

ROLLBACKS = "ZYMOGEN_ROLLBACKS"
"""Variable that counts the processes before this one which a rollback replaced."""
MOST_ROLLBACKS = 8
"""Rollbacks of one launch; where a device fails more often, somebody has to look at it."""
_PATIENCE_S = 10.0


def run_command(main: Callable[[], int]) -> NoReturn:
    """Run a command as this process, and exit with its status. Call it first, in the main thread."""
    environment = dict(os.environ)
    end_with_the_launcher()
    try:
        status = main()
    except RollbackError as rollback:
        count = int(environment.get(ROLLBACKS, "0"))
        if count < MOST_ROLLBACKS:
            _replace(environment | {ROLLBACKS: str(count + 1)})
        line = f"error: {MOST_ROLLBACKS} rollbacks in one launch are the most allowed: {rollback}; start again"
        print(line, file=sys.stderr, flush=True)
        forward_exit_status(line)
        status = class_of(rollback).status
    sys.exit(status)


def _replace(environment: dict[str, str]) -> NoReturn:
    """Run this command once more in place of this process, which keeps its id, its parent and its standard streams."""
    children = psutil.Process().children(recursive=True)  # what serves loaders and compilers; no run needs it any more
    for child in children:
        with suppress(psutil.NoSuchProcess):
            child.kill()
    psutil.wait_procs(children, _PATIENCE_S)
    sys.stdout.flush()
    sys.stderr.flush()
    for name in os.listdir("/dev/fd"):  # sockets of C++ libraries stay open otherwise, and hold MASTER_PORT
        with suppress(OSError):  # that of the listing itself
            os.set_inheritable(int(name), int(name) <= 2)
    os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], environment)
