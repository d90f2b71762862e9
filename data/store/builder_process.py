"""A separate process that builds, reports to its parent, and ends when the parent ends, even if that one is killed.

In: functions with their arguments, pickled by the parent, one after the other. Out: messages, as lines of JSON. Kept:
nothing.

It is not made by multiprocessing, whose children first import the parent's main module, here the whole of training.
"""

import json
import os
import pickle
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any, Protocol

from zymogen.console.safe_text import WHOLE, log_error
from zymogen.files.durable import CLOSED, FULL, format_os_error
from zymogen.processes.parent import end_with

_PROGRAM = (
    "import pickle, sys; sys.path[:] = pickle.load(sys.stdin.buffer); "
    "from data.store.builder_process import main; sys.exit(main())"
)


class UnusableStoreError(ValueError):
    """What was read cannot become a store, so its files are removed, except those that are named.

    Args:
        message: what is wrong, and what to change.
        keep: names of the files to keep.
    """

    def __init__(self, message: str, keep: tuple[str, ...] = ()) -> None:
        super().__init__(message)
        self.keep = keep


class MessageSender(Protocol):
    """Sends messages to the parent."""

    def __call__(self, **message: Any) -> None:
        """Send a message, whose values can be written as JSON."""


def start(function: Callable[..., None], *arguments: object) -> subprocess.Popen[bytes]:
    """Start a process that calls ``function(send, *arguments)`` and ends.

    Args:
        function: a function of a module's top level.
        arguments: values that can be pickled.
    """
    process = spawn()
    call(process, function, *arguments)
    assert process.stdin is not None
    with suppress(BrokenPipeError):
        process.stdin.close()
    return process


def spawn() -> subprocess.Popen[bytes]:
    """Start a process that makes the calls which `call` sends it."""
    process = subprocess.Popen(
        [sys.executable, "-c", _PROGRAM],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,  # an interrupt at the terminal is for the parent, which ends its children
    )
    assert process.stdin is not None
    search = [path or os.getcwd() for path in sys.path]
    with suppress(BrokenPipeError):  # it died at once; `messages` raises for that
        process.stdin.write(pickle.dumps(search) + pickle.dumps((os.getpid(), WHOLE)))
    return process


def call(process: subprocess.Popen[bytes], function: Callable[..., None], *arguments: object) -> None:
    """Have a process of `spawn` call a function as soon as it has made the calls before."""
    assert process.stdin is not None
    with suppress(BrokenPipeError):
        process.stdin.write(pickle.dumps((function, arguments)))
        process.stdin.flush()


def messages(process: subprocess.Popen[bytes], name: str) -> Iterator[dict[str, Any]]:
    """The messages of a process, until it has made its call.

    Raises:
        UnusableStoreError: the process raised it.
        ValueError: the process raised it, or died.
    """
    assert process.stdout is not None
    for line in process.stdout:
        message = json.loads(line)
        if "done" in message:
            return
        if "error" in message:
            process.wait()
            raise (UnusableStoreError if message["unusable"] else ValueError)(message["error"])
        yield message
    status = process.wait()
    how = f"was ended by signal {-status}" if status < 0 else f"ended with status {status}"
    raise ValueError(
        f"{name}: the process that reads it {how}; if memory ran out, lower data.ingest.processes; the same command "
        "continues where it stopped"
    )


def main() -> int:
    """Call the functions that the parent sends, and return the exit status."""
    channel = os.dup(1)
    os.dup2(2, 1)  # what libraries print must not mix with the messages
    calls: Any = sys.stdin.buffer
    parent, urls = pickle.load(calls)
    WHOLE.update(urls)
    sys.excepthook = log_error
    # Even in the middle of a read from a source that stalls: what was not committed is read again.
    end_with(parent)

    def send(**message: Any) -> None:
        with suppress(BrokenPipeError):  # the parent no longer reads
            os.write(channel, json.dumps(message).encode() + b"\n")

    try:
        while calls.peek(1):
            function, arguments = pickle.load(calls)
            function(send, *arguments)
            send(done=True)
    except ValueError as error:
        send(error=str(error), unusable=isinstance(error, UnusableStoreError))
        return 1
    except OSError as error:
        if error.errno not in CLOSED | FULL:
            raise
        send(error=format_os_error(error), unusable=False)
        return 1
    return 0
