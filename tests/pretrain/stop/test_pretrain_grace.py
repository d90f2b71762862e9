"""What is left of a scheduler's grace, when a signal comes while ranks ask each other for it."""

from collections.abc import Callable
from signal import SIGTERM, Signals
from typing import Any

import pytest

from zymogen.processes import signals
from zymogen.processes.signals import Interrupted
from zymogen.trainer.run.grace_period import GracePeriod


@pytest.mark.parametrize("before", ["seconds_since_signal", "first_signal"])
def test_a_signal_that_comes_while_it_is_asked_counts_the_next_time(
    before: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Right after either of the two is read: it is known with its seconds, or not yet."""
    monkeypatch.setattr(signals, "_state", signals._State())
    ask: Callable[[], float | Signals | None] = getattr(signals, before)

    def interrupted() -> float | Signals | None:
        answer = ask()
        signals._note(SIGTERM)
        return answer

    told: list[Any] = []

    def gather(own: Any) -> list[Any]:
        told.append(own)
        return [own]

    grace = GracePeriod(1000.0, gather)
    with monkeypatch.context() as patch:
        patch.setattr(signals, before, interrupted)
        grace.require(1e6, "a save takes 1e+06 s")
    assert told[0][1] is None
    with pytest.raises(Interrupted):
        grace.require(1e6, "a save takes 1e+06 s")
    passed_s, by, _ = told[1]
    assert by is SIGTERM
    assert 0 <= passed_s < 100
