"""How much of the machine other programs use meanwhile, so that a speed is not promised that they will not leave.

In: the counters of the operating system. Out: a number of cores. Kept: nothing. Torch is not imported.
"""

import time
from contextlib import suppress
from typing import Self

import psutil


class OtherLoad:
    """Counts from the beginning of its block; every process of the program runs one, and is taken to work alike."""

    def __enter__(self) -> Self:
        self._began, self._all, self._own = time.perf_counter(), _busy_s(), _own_s()
        return self

    def __exit__(self, *_: object) -> None:
        self._took = time.perf_counter() - self._began
        self._all, self._own = _busy_s() - self._all, _own_s() - self._own

    def cores(self, processes: int) -> float:
        """CPU cores that other programs used on average.

        Args:
            processes: of this program on this machine.
        """
        return max(0.0, self._all - processes * self._own) / self._took


def _busy_s() -> float:
    """CPU seconds of all cores since the machine started."""
    times = psutil.cpu_times()
    return float(times.user + times.system + getattr(times, "nice", 0.0))


def _own_s() -> float:
    """CPU seconds of this process and of all that it has started, such as compilers."""
    this = psutil.Process()
    seconds = sum(this.cpu_times()[:4])  # those of children that have ended included
    for child in this.children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            seconds += sum(child.cpu_times()[:4])
    return float(seconds)
