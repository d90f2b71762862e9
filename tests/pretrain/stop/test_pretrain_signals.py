"""Signals to this process: they raise one `Stopped`, and what is said of them is true wherever they come."""

import os
import time
from collections.abc import Callable, Iterator
from signal import SIGINT, SIGTERM, Signals

import pytest

from pretrain.run import stop
from pretrain.run.stop import Stopped


def send(by: Signals) -> None:
    os.kill(os.getpid(), by)
    time.sleep(0.01)  # a Python handler runs between two instructions


def is_stopped_by(by: Signals) -> bool:
    """Whether a signal raises; an error of its class that left a test would end all tests."""
    try:
        send(by)
        stop.heed()
    except Stopped:
        return True
    return False


@pytest.fixture(autouse=True)
def listening() -> Iterator[None]:
    with stop.listening():
        yield


def agreed_after_own() -> None:
    with stop.deferred():
        send(SIGINT)
        stop.obey(stop.word())


def agreed_without_own() -> None:
    stop.obey(1)


def at_once() -> None:
    with stop.deferred(), stop.at_once():
        send(SIGINT)


def heeded() -> None:
    with stop.deferred():
        send(SIGINT)
    stop.heed()


def consequence() -> None:
    with stop.deferred(), stop.consequences():
        send(SIGINT)
        raise RuntimeError("Connection closed by peer")


@pytest.mark.parametrize("ends", [agreed_after_own, agreed_without_own, at_once, heeded, consequence])
def test_a_run_is_stopped_once(ends: Callable[[], None]) -> None:
    """What comes while it saves and closes what is open, in which `deferred` was left already, cuts nothing off."""
    with pytest.raises(Stopped) as stopped:
        ends()
    assert not is_stopped_by(SIGINT)
    assert not is_stopped_by(SIGTERM)
    assert stopped.value.status == 130


def test_a_run_that_has_finished_is_not_stopped() -> None:
    stop.defer()
    try:
        send(SIGTERM)
    except Stopped:
        pytest.fail("it is stopped")
    assert stop.received() == SIGTERM


def test_what_is_said_holds_wherever_a_signal_comes(capfd: pytest.CaptureFixture) -> None:
    """While the directory is claimed, in a step, a save or a validation, and after the last step."""
    said = ""
    with stop.deferred():
        send(SIGINT)
        send(SIGINT)
        deadline = time.monotonic() + 5
        while not said.endswith("\n") and time.monotonic() < deadline:
            said += capfd.readouterr().err
    assert said == (
        "SIGINT: the run ends as soon as all that it has trained is saved; a second signal, 2 seconds from now or "
        "later, ends it at once\n"
    )
