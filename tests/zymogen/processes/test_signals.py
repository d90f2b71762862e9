"""Signals to this process: they raise one `Interrupted`, with a correct message wherever they arrive."""

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from multiprocessing import get_context
from signal import SIGINT, SIGTERM, SIGUSR1, Signals
from subprocess import PIPE
from typing import Any

import psutil
import pytest

from support.places import ROOT
from zymogen.processes import signals
from zymogen.processes.signals import Interrupted


def send(by: Signals) -> None:
    os.kill(os.getpid(), by)
    time.sleep(0.01)  # a Python handler runs between two instructions


def is_stopped_by(by: Signals) -> bool:
    """Whether a signal raises; an error of its class that left a test would end all tests."""
    try:
        send(by)
        signals.raise_if_set()
    except Interrupted:
        return True
    return False


@pytest.fixture(autouse=True)
def listening() -> Iterator[None]:
    with signals.handle_signals():
        yield


def program() -> Callable[[], int | None]:
    started = subprocess.Popen([sys.executable, "-c", "import time; print(flush=True); time.sleep(0.3)"], stdout=PIPE)
    assert started.stdout is not None
    started.stdout.read(1)
    os.kill(started.pid, SIGUSR1)
    return started.wait


def process_of(method: str) -> Callable[[], int | None]:
    """A process that multiprocessing starts: by fork, from its server, or as a new interpreter."""
    context = get_context(method)
    begun = context.Event()
    process = context.Process(target=wait_after, args=(begun,), daemon=True)  # type: ignore[attr-defined]
    process.start()
    begun.wait(60)
    for pid in {process.pid, psutil.Process(process.pid).ppid()} - {os.getpid()}:  # the server, too
        os.kill(pid, SIGUSR1)

    def status() -> int | None:
        process.join(60)
        return int(process.exitcode)

    return status


def wait_after(begun: Any) -> None:
    begun.set()
    time.sleep(0.2)


def in_a_thread() -> Callable[[], int | None]:
    made: list[Callable[[], int | None]] = []
    thread = threading.Thread(target=lambda: made.append(program()))
    thread.start()
    thread.join()
    return made[0]


HEARS = """
import os, signal, time
from zymogen.processes import signals
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})  # as a run that started this program may have left it
with signals.handle_signals():
    os.kill(os.getpid(), signal.SIGUSR1)
    deadline = time.monotonic() + 5
    while not signals.save_requested() and time.monotonic() < deadline:
        time.sleep(0.01)
    print(signals.save_requested())
"""


def test_a_signal_to_save_is_heard_by_a_process_that_was_started_without() -> None:
    done = subprocess.run([sys.executable, "-c", HEARS], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.stdout == "True\n", done.stderr


def compilers() -> Callable[[], int | None]:
    """The processes in which torch compiles kernels."""
    from torch._inductor.compile_worker.subproc_pool import SubprocPool

    before = set(psutil.Process().children(recursive=True))
    pool = SubprocPool(1)
    assert pool.submit(os.getpid).result(60) != os.getpid()
    started = set(psutil.Process().children(recursive=True)) - before
    assert len(started) >= 2  # one that starts the others
    for each in started:
        os.kill(each.pid, SIGUSR1)

    def status() -> int | None:
        alive = pool.submit(os.getpid).result(60) in {each.pid for each in started}
        pool.shutdown()
        return int(not alive)

    return status


@pytest.mark.parametrize(
    "start",
    [
        program,
        pytest.param(compilers, marks=[pytest.mark.slow, pytest.mark.timeout(90)]),
        in_a_thread,
        partial(process_of, "fork"),
        pytest.param(partial(process_of, "spawn"), marks=pytest.mark.slow),
    ],
)
def test_a_signal_to_save_ends_nothing_that_the_run_has_started(start: Callable[[], Callable[[], int | None]]) -> None:
    """A scheduler sends it to all processes of a job: workers, compilers, and programs that know nothing of it."""
    status = start()
    assert status() == 0
    assert not signals.save_requested()
    send(SIGUSR1)
    deadline = time.monotonic() + 5
    while not signals.save_requested() and time.monotonic() < deadline:
        time.sleep(0.001)
    assert signals.save_requested()


def agreed_after_own() -> None:
    with signals.deferred():
        send(SIGINT)
        signals.raise_if_flagged(signals.signal_flag())


def agreed_without_own() -> None:
    signals.raise_if_flagged(1)


def at_once() -> None:
    with signals.deferred(), signals.immediate():
        send(SIGINT)


def heeded() -> None:
    with signals.deferred():
        send(SIGINT)
    signals.raise_if_set()


def consequence() -> None:
    with signals.deferred(), signals.blame_signal():
        send(SIGINT)
        raise RuntimeError("Connection closed by peer")


@pytest.mark.parametrize("ends", [agreed_after_own, agreed_without_own, at_once, heeded, consequence])
def test_a_run_is_stopped_once(ends: Callable[[], None]) -> None:
    """What comes while it saves and closes what is open, in which `deferred` was left already, cuts nothing off."""
    with pytest.raises(Interrupted) as stopped:
        ends()
    assert not is_stopped_by(SIGINT)
    assert not is_stopped_by(SIGTERM)
    assert stopped.value.status == 130


def test_a_run_that_has_finished_is_not_stopped() -> None:
    signals.defer()
    try:
        send(SIGTERM)
    except Interrupted:
        pytest.fail("it is stopped")
    assert signals.first_signal() == SIGTERM


def test_what_is_said_holds_wherever_a_signal_comes(capfd: pytest.CaptureFixture) -> None:
    """While the directory is claimed, in a step, a save or a validation, and after the last step."""
    said = ""
    with signals.deferred():
        send(SIGINT)
        send(SIGINT)
        deadline = time.monotonic() + 5
        while not said.endswith("\n") and time.monotonic() < deadline:
            said += capfd.readouterr().err
    assert said == (
        "SIGINT: the run ends as soon as all that it has trained is saved; a second signal, 2 seconds from now or "
        "later, ends it at once\n"
    )
