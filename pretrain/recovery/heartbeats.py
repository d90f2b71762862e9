"""Heartbeats: each rank shows in the store of the rendezvous that it lives, and where it stands.

In: step and phase of this rank. Out: the latest heartbeats of the ranks that it sees, with the time since when each is
the same, by this rank's clock. Kept: one key for each rank in the store, until the launch ends; nothing on a disk.

Once a second each rank sets its key and reads that of rank 0, and rank 0 reads all in one request: two or three small
messages for each rank and second. The connection is a client of its own, in a thread of its own: a call to a host that
stands still never returns, whatever its timeout is (torch 2.13 has one for keys that are not set alone).
"""

import json
import time
from collections.abc import Callable
from threading import Event
from typing import Any, NamedTuple

BEAT_S = 1.0
STOOD_STILL_S = 5.0
"""A process that did nothing for so long was stopped, or starved, and has to see the others again first."""
OVER = "over"
"""Phase of a rank whose attempt has ended in order."""


class Heartbeat(NamedTuple):
    """What a rank shows."""

    number: int = 0
    step: int = 0
    phase: str = "start"
    host: str = "unknown"
    finding: str = ""
    """Why all ranks are to end, as rank 0 has found; else empty."""


_NONE = json.dumps(Heartbeat())
"""The key of a rank that has not begun."""


class Heartbeats:
    """The heartbeats that one rank sees: rank 0 those of all others, and these that of rank 0.

    Args:
        connect: makes a client of the store, with keys of this attempt alone.
        rank: number of this process.
        world_size: number of processes.
    """

    def __init__(self, connect: Callable[[], Any], rank: int, world_size: int) -> None:
        self._connect, self._rank, self._number = connect, rank, 0
        self._store: Any = None
        self._others = list(range(1, world_size)) if rank == 0 else [0]
        self.seen: dict[int, tuple[Heartbeat, float]] = {}
        """Other rank -> its latest heartbeat, and since when that is the same."""
        self.answered = time.monotonic()
        """When the store last answered."""
        self.is_over = Event()
        self.wait_again(self.answered)

    def wait_again(self, now: float) -> None:
        """Begin to wait for each rank now, as this process could not see them before."""
        self.seen = {rank: (self.seen.get(rank, (Heartbeat(), now))[0], now) for rank in self._others}
        self.answered = now

    def beat(self, latest: Callable[[], Heartbeat]) -> None:
        """Show the latest heartbeat and see the others once a second, until it is over and once after that."""
        is_last = False
        while not is_last:
            is_last = self.is_over.is_set()
            try:
                self.exchange(latest())
            except RuntimeError:  # torch's errors of a store; its host may be back at the next heartbeat
                self._store = None
            self.is_over.wait(BEAT_S)

    def exchange(self, own: Heartbeat) -> None:
        """Show the own heartbeat and see the others.

        Raises:
            RuntimeError: the store has gone away.
        """
        if self._store is None:
            self._store = self._connect()
            if self._rank == 0 and not self._number:  # a request for a key that is not set waits for it
                self._store.multi_set(list(map(str, self._others)), [_NONE] * len(self._others))
        self._number += 1
        self._store.set(str(self._rank), json.dumps(own._replace(number=self._number)))
        if self._rank == 0:
            found = self._store.multi_get(list(map(str, self._others)))
        else:
            found = [self._store.compare_set("0", "", _NONE)]  # a read that does not wait
        now = time.monotonic()
        for rank, content in zip(self._others, found, strict=True):
            heartbeat = Heartbeat(*json.loads(content))
            if heartbeat != self.seen[rank][0]:
                self.seen[rank] = heartbeat, now
        self.answered = now
