"""A separate process that builds, reports to its parent, and ends when the parent ends, even if that one is killed.

In: a function with its arguments, pickled by the parent. Out: messages, as lines of JSON. Kept: nothing.

It is not made by multiprocessing, whose children first import the parent's main module, here the whole of training.
"""

import json
import os
import pickle
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

from zymogen.console.safe_text import WHOLE, log_error
from zymogen.files.durable import CLOSED, FULL, format_os_error
from zymogen.processes.parent import end_with

MessageSender = Callable[..., None]
"""Sends a message, given as keywords whose values can be written as JSON, to the parent."""

_PROGRAM = (
    "import pickle, sys; sys.path[:] = pickle.load(sys.stdin.buffer); "
    "from data.store.builder_process import main; sys.exit(main())"
)


def start(function: Callable[..., None], *arguments: object) -> subprocess.Popen[bytes]:
    """Start a process that calls ``function(send, *arguments)`` and ends.

    It looks for modules where this process does, which includes the folder of the recipe.

    Args:
        function: a function of a module's top level.
        arguments: values that can be pickled.
    """
    process = subprocess.Popen(
        [sys.executable, "-c", _PROGRAM],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,  # an interrupt at the terminal is for the parent, which ends its children
    )
    assert process.stdin is not None
    search = [path or os.getcwd() for path in sys.path]
    content = (search, (os.getpid(), WHOLE), (function, arguments))
    with suppress(BrokenPipeError):  # it died at once; `messages` raises for that
        process.stdin.write(b"".join(map(pickle.dumps, content)))
        process.stdin.close()
    return process


def messages(process: subprocess.Popen[bytes], name: str) -> Iterator[dict[str, Any]]:
    """The messages of a process, until it has made its call.

    Raises:
        ValueError: the process raised it, or died.
    """
    assert process.stdout is not None
    for line in process.stdout:
        message = json.loads(line)
        if "error" in message:
            process.wait()
            raise ValueError(message["error"])
        yield message
    if status := process.wait():
        how = f"was ended by signal {-status}" if status < 0 else f"ended with status {status}"
        raise ValueError(f"{name}: its process {how}; did memory run out? The same command continues where it stopped")


def main() -> int:
    """Call the function that the parent sends, and return the exit status."""
    channel = os.dup(1)
    os.dup2(2, 1)  # what libraries print must not mix with the messages
    parent, urls = pickle.load(sys.stdin.buffer)
    WHOLE.update(urls)
    sys.excepthook = log_error
    # Even in the middle of a read from a source that stalls: what was not committed is read again.
    end_with(parent)

    def send(**message: Any) -> None:
        with suppress(BrokenPipeError):  # the parent no longer reads
            os.write(channel, json.dumps(message).encode() + b"\n")

    try:
        function, arguments = pickle.load(sys.stdin.buffer)
        function(send, *arguments)
    except ValueError as error:
        send(error=str(error))
        return 1
    except OSError as error:
        if error.errno not in CLOSED | FULL:
            raise
        send(error=format_os_error(error))
        return 1
    return 0
