"""Signals that go to a whole group of processes, and that only the training process answers.

In: nothing. Out: a context in which processes are started that do not hear them. Kept: nothing. A terminal sends Ctrl-C
to all processes of a group, and schedulers send SIGTERM to all of a job; the training process needs those that work for
it until the step that it takes is finished.
"""

import signal
from collections.abc import Iterator
from contextlib import contextmanager

TO_END = (signal.SIGINT, signal.SIGTERM)


@contextmanager
def blocked() -> Iterator[None]:
    """Context in which this thread, and for good the processes that it starts, get no signal of `TO_END`."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, TO_END)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
