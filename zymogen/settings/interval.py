"""An interval of training: a number of steps, or a time in words.

In: a recipe's value, such as 100, "30 s", "10 min" or "2 h". Out: `Interval`. Kept: nothing.
"""

import math
import re
from dataclasses import dataclass

Every = int | str
"""An interval as a recipe gives it."""
UNIT = "steps, or as a time: '30 s', '10 min', '2 h'"
"""Unit of an interval, for --help; a setting with it is checked to be one."""
TIME = "a time: '30 s', '10 min', '2 h'"
"""Unit of an interval that is no number of steps, likewise."""

_SECONDS = {"s": 1.0, "min": 60.0, "h": 3600.0}


@dataclass(frozen=True, slots=True)
class Interval:
    """Either is None."""

    steps: int | None
    seconds: float | None

    def times(self, step: int, last: int, left_s: float) -> int:
        """How often it is still to come after `step`, until the step `last`, which is `left_s` seconds from now.

        The last step counts in any case.
        """
        if last <= step:
            return 0
        if self.steps is not None:
            return last // self.steps - step // self.steps + bool(last % self.steps)
        return 1 + (int(left_s / self.seconds) if self.seconds else 0)


def interval(name: str, value: Every) -> Interval:
    """The interval that a setting gives.

    Raises:
        ValueError: it is no number of steps from 1 on, and no time above 0.
    """
    if isinstance(value, int):
        if value < 1:
            raise ValueError(f"{name} is {value!r}; it must be at least 1 step, or a time such as '10 min'")
        return Interval(value, None)
    match = re.fullmatch(r"(\d+(?:\.\d+)?) *(s|min|h)", value.strip())
    seconds = float(match[1]) * _SECONDS[match[2]] if match else 0.0
    if not 0 < seconds < math.inf:
        raise ValueError(no_interval(name, value))
    return Interval(None, seconds)


def no_interval(name: str, got: object) -> str:
    """Text of an error: which setting, its value, and what an interval may be."""
    return f"{name} is {got!r}; it must be a whole number of steps, or a time: '30 s', '10 min', '2 h'"


def seconds(name: str, value: str) -> float:
    """The time that a setting gives.

    Raises:
        ValueError: it is no time above 0.
    """
    try:
        found = interval(name, value).seconds
    except ValueError:
        found = None
    if found is None:
        raise ValueError(f"{name} is {value!r}; it must be {TIME}")
    return found
