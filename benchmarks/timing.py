"""Seconds of several works, taken in turn. In: works, a clock. Out: medians. Kept: nothing."""

import time
from collections.abc import Callable
from statistics import median

Work = Callable[[], object]


def side_by_side(*works: Work, rounds: int = 5, clock: Callable[[], float] = time.process_time) -> list[float]:
    """Median seconds of each, after one round that warms up: CPU seconds, unless another clock is given."""
    seconds: list[list[float]] = [[] for _ in works]
    for round_ in range(rounds + 1):
        for mine, work in zip(seconds, works, strict=True):
            started = clock()
            work()
            if round_:
                mine.append(clock() - started)
    return [median(mine) for mine in seconds]
