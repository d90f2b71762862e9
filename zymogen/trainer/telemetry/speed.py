"""The speed of training between two lines of metrics.

In: tokens and FLOPs of each step, and when the loop waits. Out: numbers of a line of metrics. Kept: the sums since the
last line.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager


class Timer:
    """Measures from its creation on."""

    def __init__(self) -> None:
        self._since, self._tokens, self._flops, self._waited = time.perf_counter(), 0, 0.0, 0.0

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Count the time inside this block as waiting."""
        started = time.perf_counter()
        yield
        self._waited += time.perf_counter() - started

    def count(self, tokens: int, flops: float) -> None:
        """Count one finished step."""
        self._tokens += tokens
        self._flops += flops

    def read(self) -> dict[str, float]:
        """Return the speed so far, and the share of the time in which steps waited for their batches."""
        elapsed = time.perf_counter() - self._since
        sums = {"tokens_per_s": self._tokens, "loader_wait": self._waited, "flops_per_s": self._flops}
        return {name: value / elapsed for name, value in sums.items()}
