"""The grace of a scheduler: the seconds between its SIGTERM and its SIGKILL, which `run.grace_s` says.

In: when signals came, on each rank. Out: `Interrupted`, on every rank, where what is left is too short. Kept: nothing.

Ranks compare how long ago a signal came, and no clocks of machines; the one that got the first signal counts.
"""

from collections.abc import Callable
from typing import Any

from zymogen.processes import signals
from zymogen.processes.signals import Interrupted

_TO_SAVE = 0.8
"""The share of the grace in which a save must have ended."""
_TO_LEAVE = 0.95
"""The share after which a rank that cannot end in order ends in any case."""


class GracePeriod:
    """What is left of the grace, the same on every rank.

    Args:
        seconds: from the first signal on; None is without limit.
        gather: gives every rank's value to all.
    """

    def __init__(self, seconds: float | None, gather: Callable[[Any], list[Any]]) -> None:
        self._seconds, self._gather = seconds, gather

    @property
    def is_running(self) -> bool:
        """Whether it has a limit, and this rank got a signal."""
        return self._seconds is not None and signals.first_signal() is not None

    def poll_interval(self, most_s: float) -> float:
        """How long to wait between two looks at it, if `most_s` is enough without a limit."""
        return most_s if self._seconds is None else min(most_s, self._seconds / 50)

    def require(self, needs_s: float, what: str) -> None:
        """Stop here if a signal came and less is left than what is needed; collective.

        Args:
            needs_s: by rank 0, which knows what saves cost.
            what: needs it.

        Raises:
            Interrupted: with `agreed`, and with the reason why what was trained is not saved.
        """
        if self._seconds is None:
            return
        by = signals.first_signal()  # before the seconds: a signal between the two would have none
        found = self._gather((signals.seconds_since_signal(), by, needs_s))
        heard = [(passed_s, by) for passed_s, by, _ in found if by is not None]
        if not heard:
            return
        passed_s, by = max(heard)
        left_s = _TO_SAVE * self._seconds - passed_s
        if left_s < found[0][2]:
            stopped = Interrupted(by, agreed=True)
            stopped.unsaved = (
                f"{what}, and {max(left_s, 0.0):.2g} s were left of the {_TO_SAVE * self._seconds:.2g} s for it "
                f"(run.grace_s = {self._seconds:g})"
            )
            raise stopped


def is_over(seconds: float | None, in_s: float) -> bool:
    """Whether a signal came so long ago that this process is to end before SIGKILL ends it.

    Args:
        seconds: as of `GracePeriod`.
        in_s: when it is asked again.
    """
    heard_s = signals.seconds_since_signal()
    return seconds is not None and heard_s is not None and heard_s + in_s > _TO_LEAVE * seconds
