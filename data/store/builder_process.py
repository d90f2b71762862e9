"""A process of its own that builds, reports to the one that started it, and ends when that one does, however it ends.

In: a function and its arguments, pickled by the parent. Out: messages, as lines of JSON. Kept: nothing.

Not multiprocessing, whose children import the parent's main module, here the whole of training, first.
"""

import json
import os
import pickle
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any, Protocol

from data.disk_error import CLOSED, FULL, one_line

_PROGRAM = (
    "import pickle, sys; sys.path[:] = pickle.load(sys.stdin.buffer); "
    "from data.store.builder_process import main; sys.exit(main())"
)
_WATCH_S = 0.2


class Unusable(ValueError):
    """What was read cannot become a store, so that nothing of it is kept, but what is named.

    Args:
        message: what is wrong, and what to change.
        keep: names of the files that are worth keeping.
    """

    def __init__(self, message: str, keep: tuple[str, ...] = ()) -> None:
        super().__init__(message)
        self.keep = keep


class Send(Protocol):
    """Reports to the parent."""

    def __call__(self, **message: Any) -> None:
        """Send what can be written as JSON."""


def start(function: Callable[..., None], *arguments: object) -> subprocess.Popen[bytes]:
    """Start a process that calls ``function(send, *arguments)``.

    Args:
        function: of a module's top level.
        arguments: what can be pickled.
    """
    process = subprocess.Popen(
        [sys.executable, "-c", _PROGRAM],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,  # an interrupt at the terminal is for the parent, which ends its children
    )
    assert process.stdin is not None
    search = [path or os.getcwd() for path in sys.path]
    try:
        with process.stdin as channel:
            channel.write(pickle.dumps(search) + pickle.dumps((os.getpid(), function, arguments)))
    except BrokenPipeError:  # it died at once; `messages` says so
        pass
    return process


def messages(process: subprocess.Popen[bytes], name: str) -> Iterator[dict[str, Any]]:
    """What a process reports, until it has done its work.

    Raises:
        Unusable, ValueError: it raised that, or died.
    """
    assert process.stdout is not None
    for line in process.stdout:
        message = json.loads(line)
        if "done" in message:
            process.wait()
            return
        if "error" in message:
            process.wait()
            raise (Unusable if message["unusable"] else ValueError)(message["error"])
        yield message
    status = process.wait()
    how = f"was ended by signal {-status}" if status < 0 else f"ended with status {status}"
    raise ValueError(
        f"{name}: the process that reads it {how}; if memory ran out, lower data.ingest.processes; the same command "
        "goes on where it stood"
    )


def main() -> int:
    """Run what the parent sent."""
    channel = os.dup(1)
    os.dup2(2, 1)  # what libraries print is no message
    parent, function, arguments = pickle.load(sys.stdin.buffer)
    threading.Thread(target=_end_with, args=(parent,), daemon=True).start()

    def send(**message: Any) -> None:
        with suppress(BrokenPipeError):  # the parent does not listen any more
            os.write(channel, json.dumps(message).encode() + b"\n")

    try:
        function(send, *arguments)
    except ValueError as error:
        send(error=str(error), unusable=isinstance(error, Unusable))
        return 1
    except OSError as error:
        if error.errno not in CLOSED | FULL:
            raise
        send(error=one_line(error), unusable=False)
        return 1
    send(done=True)
    return 0


def _end_with(parent: int) -> None:
    """End this process when the one that started it is gone, even in the middle of a read from a source that stalls.

    A builder may be ended at any time: what it did not commit is read again.
    """
    while os.getppid() == parent:
        time.sleep(_WATCH_S)
    os._exit(3)
