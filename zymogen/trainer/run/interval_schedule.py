"""When something that recurs in a run is due: after so many steps, or after so much time.

In: an interval of the recipe, the number of a step. Out: whether it is due. Kept: when it was last done.
"""

from time import monotonic

from zymogen.settings.interval import Every, interval


class IntervalSchedule:
    """What recurs at an interval.

    Args:
        name: of the setting, for errors.
        every: the interval.
    """

    def __init__(self, name: str, every: Every) -> None:
        self._interval = interval(name, every)
        self.reset()

    def due_at_step(self, step: int) -> bool:
        """Whether the interval is in steps and ends with this one: the same on every rank."""
        return self._interval.steps is not None and step % self._interval.steps == 0

    def due_by_clock(self, *, first: bool = False, last: bool = False) -> bool:
        """Whether the interval is a time that has passed, by this rank's clock, so that one rank decides for all.

        Args:
            first: whether it is due because nothing was done yet.
            last: whether it is due because this is the last step.
        """
        seconds = self._interval.seconds
        return seconds is not None and (first or last or monotonic() - self._since >= seconds)

    def reset(self) -> None:
        """Count the time from now on."""
        self._since = monotonic()
