"""Signals to a run: Ctrl-C (SIGINT) and SIGTERM stop it, SIGUSR1 has it save and train on.

In: signals. Out: `Interrupted`, raised at once where nothing is lost by that, and where all ranks agree elsewhere.
Kept: the first signal to stop, and when it came; whether a save was asked for.

The first signal ends a run in order. Launchers repeat theirs within a moment, so what comes within two seconds is still
the first one; a later one ends the process at once. A thread hears them, as the main thread may be waiting for the
device or for other ranks.

SIGUSR1 to any rank is told to all with the counts of the next step, and that step is saved. It has an effect on nothing
before the first step, where there is nothing to save.
"""

import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from signal import Signals

from zymogen.processes.errors import CheckpointError
from zymogen.processes.launcher import launched_world

SIGNALS = (Signals.SIGINT, Signals.SIGTERM)
SAVE = Signals.SIGUSR1
STATUS = {Signals.SIGINT: 128 + Signals.SIGINT, Signals.SIGTERM: os.EX_TEMPFAIL}
"""What a process ends with that a signal stopped. SIGTERM is what schedulers send: the same command continues."""
_SAME_S = 2.0
"""For so long after the first signal, another one counts as the same."""
_ANSWERS_S = 0.5
"""Time in which Python code answers a signal; code of a library does not."""
_WORDS = {Signals.SIGINT: 1, Signals.SIGTERM: 1 << 32}
"""What a rank that got a signal adds to the sum over all ranks: room for 2**32 of them."""
_ENDS = (
    "the run ends as soon as all that it has trained is saved; "
    f"a second signal, {_SAME_S:.0f} seconds from now or later, ends it at once"
)


class _State:
    """What this process has heard."""

    first: Signals | None = None
    since = 0.0
    deferred = False
    raised = False
    blocks = False
    save_requested = False


_state = _State()


class Interrupted(KeyboardInterrupt):
    """A signal ends the run. Signals that come later raise no other, so that what the first one began is not cut off.

    Args:
        by: the signal.
        agreed: whether every rank raises this at the same place, so that they can still work together.
    """

    def __init__(self, by: Signals, *, agreed: bool = False) -> None:
        super().__init__(f"stopped by {by.name}")
        _state.raised = True
        self.by, self.agreed = by, agreed
        self.outcome = str(self)
        """The same with the step, for the user."""
        self.checkpoint: Path | None = None
        """The newest one that is known."""
        self.unsaved: str | None = None
        """Why what was trained since then is not saved, if it is not."""

    @property
    def status(self) -> int:
        """The exit status of the process."""
        return STATUS[self.by]


def first_signal() -> Signals | None:
    """The first signal that this process got, if any."""
    return _state.first


def seconds_since_signal() -> float | None:
    """For how many seconds this process has known of the first signal; None if there was none."""
    return time.monotonic() - _state.since if _state.first else None


def save_requested() -> bool:
    """Whether this process got SIGUSR1 since its last save began."""
    return _state.save_requested


def clear_save_request() -> None:
    """A save has begun, for which SIGUSR1 may have asked."""
    _state.save_requested = False


def signal_flag() -> int:
    """What this rank adds to the sum from which every rank learns of a signal; 0 if it got none."""
    return _WORDS[_state.first] if _state.first else 0


def raise_if_flagged(sum_of_words: int) -> None:
    """Stop if any rank got a signal.

    Raises:
        Interrupted: with `agreed`, as every rank has the same sum.
    """
    if sum_of_words:
        raise Interrupted(Signals.SIGTERM if sum_of_words >= _WORDS[Signals.SIGTERM] else Signals.SIGINT, agreed=True)


@contextmanager
def deferred(holds: bool = True) -> Iterator[None]:
    """Context in which a signal is only noted, until the ranks agree to stop; with `holds` False it is obeyed."""
    before = _state.deferred
    _state.deferred = holds
    try:
        yield
    finally:
        _state.deferred = before


def defer() -> None:
    """Only note signals from here on: the run has finished, and what is left to do ends by itself."""
    _state.deferred = True


def raise_if_set(by: Signals | None = None) -> None:
    """Stop here, once, if a signal comes, or came while it was deferred.

    Args:
        by: the one that comes.

    Raises:
        Interrupted: there is one, and nothing defers it.
    """
    if by:
        _note(by)
    if _state.first and not _state.deferred and not _state.raised:
        raise Interrupted(_state.first)


@contextmanager
def immediate(holds: bool = True) -> Iterator[None]:
    """Context inside `deferred` in which a signal, also one that came before, raises `Interrupted` at once.

    Args:
        holds: False leaves everything as it is.
    """
    with deferred(_state.deferred and not holds):
        raise_if_set()
        yield


@contextmanager
def exit_on_signal() -> Iterator[None]:
    """Context before training, in which a library may wait for other processes: a signal ends the process at once."""
    _state.blocks = True
    try:
        raise_if_set()
        yield
    finally:
        _state.blocks = False


@contextmanager
def blame_signal() -> Iterator[None]:
    """Context in which errors after a signal are taken for its consequence: of other ranks that have left, say."""
    try:
        yield
    except RuntimeError as error:
        if (by := first_signal()) is None or isinstance(error, CheckpointError):
            raise
        raise Interrupted(by) from error


@contextmanager
def handle_signals() -> Iterator[None]:
    """Context of the program: signals to end it stop it in order. Those that its parent ignores stay ignored.

    SIGUSR1, which would kill it, asks for a save, also where its parent ignores it; where another library handles it,
    that stays. Only the thread of signals takes it: whatever this process starts inherits that it is blocked, so that
    one sent to all processes of a group or a job ends no worker, compiler or other program.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    _state.first = None
    _state.deferred = _state.raised = _state.save_requested = _state.blocks = False
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    ear = threading.Thread(target=_listen, args=(reading,), name="signals", daemon=True)
    ear.start()
    wakeup = signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    before = {each: signal.getsignal(each) for each in SIGNALS}
    for each in SIGNALS:
        if before[each] is not signal.SIG_IGN:
            signal.signal(each, lambda number, frame: raise_if_set(Signals(number)))
    if signal.getsignal(SAVE) is not None:  # else C code handles it
        before[SAVE] = signal.signal(SAVE, lambda number, frame: None)  # the thread hears it
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {SAVE} & before.keys())
    try:
        yield
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        signal.set_wakeup_fd(wakeup)
        _state.first, _state.deferred = None, False
        os.close(writing)
        ear.join()
        os.close(reading)


def _note(by: Signals) -> None:
    """Keep the first signal."""
    if _state.first is None:
        _state.since, _state.first = time.monotonic(), by


def _listen(pipe: int) -> None:
    """Hear every signal as soon as it comes."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {SAVE})
    told = False
    while numbers := os.read(pipe, 64):
        if SAVE in numbers:
            _state.save_requested = True
            print(f"{SAVE.name}: the step that is being taken is saved", file=sys.stderr, flush=True)
        for by in (Signals(number) for number in numbers if number in SIGNALS):
            _note(by)
            if _state.deferred and not told and launched_world().rank == 0:
                told = True
                print(f"{by.name}: {_ENDS}", file=sys.stderr, flush=True)
            if time.monotonic() - _state.since > _SAME_S:
                os._exit(STATUS[by])
            if _state.blocks and not _state.raised:
                time.sleep(_ANSWERS_S)
                if _state.blocks and not _state.raised:
                    print(f"stopped by {by.name} while it waited for other processes", file=sys.stderr, flush=True)
                    os._exit(STATUS[by])


@contextmanager
def blocked() -> Iterator[None]:
    """Context in which this thread, and all processes that it starts, for as long as they live, get none of `SIGNALS`.

    A terminal sends Ctrl-C to all processes of a group, and schedulers send SIGTERM to all of a job; a run needs its
    workers until its step is finished.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
