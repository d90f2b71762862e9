"""Speed between two lines of metrics.

In: tokens seen, and when the loop waits. Out: `Speed`. Kept: the time and tokens of the last line.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple


class Speed(NamedTuple):
    """What a line of metrics says of it."""

    tokens_per_s: float
    loader_wait: float
    """Share of the time in which the step waited for its batches."""


class Clock:
    """Measures from its making, or its last reading, to the next."""

    def __init__(self, tokens_seen: int) -> None:
        self._restart(tokens_seen)

    def _restart(self, tokens_seen: int) -> None:
        self._since, self._tokens, self._waited = time.perf_counter(), tokens_seen, 0.0

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Around what the step waits for."""
        started = time.perf_counter()
        yield
        self._waited += time.perf_counter() - started

    def read(self, tokens_seen: int) -> Speed:
        """The speed since the last reading, and start anew."""
        elapsed = time.perf_counter() - self._since
        speed = Speed((tokens_seen - self._tokens) / elapsed, self._waited / elapsed)
        self._restart(tokens_seen)
        return speed
