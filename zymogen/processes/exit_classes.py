"""How a start may end: the classes, with exit status, what each is recognised by, what it concerns and what helps.

In: an exception, or what an earlier start wrote down of its end. Out: an `ExitClass`. Kept: nothing.

This is the one place that decides. The statuses are those of sysexits.h, so that a batch system can tell them apart.
Torch is not imported, because a command line is read before it is; its exceptions are recognised by their names.
"""

import os
from signal import Signals
from typing import NamedTuple

from zymogen.files.durable import CLOSED
from zymogen.processes.errors import PeerError, StorageError, is_disk_full
from zymogen.processes.signals import Interrupted


class ExitClass(NamedTuple):
    """One way in which a start ends."""

    name: str
    """What the records of a run call it."""
    status: int
    """Exit status of the process."""
    signal: str
    """What it is recognised by."""
    scope: str
    """What it concerns."""
    remedy: str
    """What to do about it."""


FINISHED = ExitClass(
    name="finished",
    status=os.EX_OK,
    signal="the last token is trained, and the model is exported",
    scope="nothing failed",
    remedy="nothing is left to do",
)
ERROR = ExitClass(
    name="error",
    status=os.EX_SOFTWARE,
    signal="any other exception",
    scope="one rank: its process, its device, or the program",
    remedy="start again; after three equal ends the next start is refused",
)
PEER = ExitClass(
    name="peer",
    status=os.EX_OSERR,
    signal="a collective, or a call of another rank, that failed because a rank or the network went away",
    scope="the communicator: another rank, its machine, or the network",
    remedy="start again",
)
STORAGE = ExitClass(
    name="storage",
    status=os.EX_IOERR,
    signal="a full disk or quota, or a checkpoint that cannot be written or read",
    scope="the storage",
    remedy="free space or repair it, then start again",
)
PREEMPTED = ExitClass(
    name="preempted",
    status=os.EX_TEMPFAIL,
    signal="SIGTERM, or no line of its end: it was killed, or its machine went away",
    scope="the machine",
    remedy="start again: the same command continues",
)
INPUT = ExitClass(
    name="input",
    status=os.EX_CONFIG,
    signal="a mistake in recipe, files, rights or launch, a start that is refused, or a run that diverged",
    scope="what was given",
    remedy="mend what its line names, then start again",
)
INTERRUPTED = ExitClass(
    name="interrupted",
    status=128 + Signals.SIGINT,
    signal="SIGINT (Ctrl-C)",
    scope="nothing failed",
    remedy="start again when it is wanted",
)
CLASSES = (FINISHED, ERROR, PEER, STORAGE, PREEMPTED, INPUT, INTERRUPTED)

HANG = "Hang"
"""What the records of a run call a rank that was blocked; it is the cause, where no rank failed by itself."""
_OF_A_PEER = ("DistBackendError", "DistNetworkError", "DistStoreError", "DistError")
_OF_GLOO = "gloo/transport"


def class_of(error: BaseException) -> ExitClass:
    """The class of a start, or of another command, that an exception ends."""
    if isinstance(error, Interrupted):
        return INTERRUPTED if error.by == Signals.SIGINT else PREEMPTED
    if isinstance(error, KeyboardInterrupt):
        return INTERRUPTED
    if isinstance(error, StorageError) or is_disk_full(error):
        return STORAGE
    if isinstance(error, PeerError) or is_of_a_peer(type(error).__name__, str(error)):
        return PEER
    closed = isinstance(error, OSError) and error.errno in CLOSED
    is_mistake = isinstance(error, (ValueError, FloatingPointError)) and not isinstance(error, UnicodeEncodeError)
    return INPUT if is_mistake or closed else ERROR


def class_of_record(end: str | None) -> ExitClass:
    """The class of a start, from what its end is called in the records of any version; None where there is no end."""
    if end is None:
        return PREEMPTED
    if end.startswith("stopped by "):
        return INTERRUPTED if "SIGINT" in end else PREEMPTED
    return next((each for each in CLASSES if each.name == end), ERROR)


def is_of_a_peer(error: str, message: str) -> bool:
    """Whether an exception of this name says that another rank, or the network, went away."""
    return error in _OF_A_PEER or _OF_GLOO in message
