"""The speed of training between two lines of metrics.

In: tokens and FLOPs of each step, and when the loop waits. Out: `Throughput`. Kept: the sums since the last line.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple


class Throughput(NamedTuple):
    """The speed, as a line of metrics has it."""

    tokens_per_s: float
    loader_wait: float
    """Share of the time in which the step waited for its batches."""
    flops_per_s: float


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

    def read(self) -> Throughput:
        """The speed so far."""
        elapsed = time.perf_counter() - self._since
        return Throughput(self._tokens / elapsed, self._waited / elapsed, self._flops / elapsed)
