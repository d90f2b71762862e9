"""The watchdog: ranks that are blocked by one that stands still end, and name it.

In: where this rank stands, and the heartbeats of the others. Out: a key of this rank in the store of the rendezvous,
set once a second; the end of this process, with status 71, or that of a signal that came. Kept: nothing.

A rank that is stopped, or whose machine hangs, closes no connection: its peers wait in a collective until
`parallel.timeout`, or for as long as the longest build. Two things are judged, apart from each other:

- A process is silent: its heartbeat has stopped for `SILENT_S`, in any phase, and this rank has made no progress for as
  long. Rank 0 judges the others and they judge rank 0. A host of the store that does not answer is named, too.
- Nothing progresses, although all processes live: all ranks are loading or training, and no step was taken for
  `_TIMES` times the median of the latest ones, and at least `STUCK_S`. Rank 0 judges that for all.

What rank 0 finds is in its heartbeat, and all ranks end by it. Heartbeats come from a thread, so a main thread that
waits for a disk, compiles, saves or validates is alive, and may take its time.

A rank that got a signal and cannot end in order, because others that it waits for never come, ends too, with the status
of the signal: before `run.grace_s` is over, or without that, when it has made no progress for as long in a build, while
it waits for data, or in a step.

The client of the store is its own, in a thread of its own: a call to a host that stands still never returns, whatever
its timeout is (torch 2.13 has one for keys that are not set alone).

Clocks of machines are not compared: each rank times by its own how long a heartbeat has stayed the same. One that finds
that it stood still itself begins again to count. One process has nobody that waits for it, and is not watched.
"""

import faulthandler
import json
import os
import socket
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from statistics import median_low
from threading import Event
from typing import Any, NamedTuple, NoReturn
from uuid import uuid4

from torch.distributed.distributed_c10d import PrefixStore

from zymogen.processes import signals
from zymogen.processes.exit_classes import HANG, PEER
from zymogen.processes.launcher import forward_exit_status
from zymogen.trainer.engine.ranks import Ranks
from zymogen.trainer.engine.rendezvous import connected, store_host
from zymogen.trainer.run import records
from zymogen.trainer.run.directory import RunDirectory
from zymogen.trainer.run.grace_period import is_over

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


SILENT_S = 30.0
"""Time without a heartbeat after which a process is silent."""
STUCK_S = 300.0
"""Shortest time without a step that counts: a layer may be compiled again, or data come from a busy disk."""
_TIMES, _STEPS = 20, 32
_LOOK_S = 0.5
_TIMEOUT = timedelta(seconds=5)
_WRITE_S = 5.0
"""Time for the last lines of this process, which may wait for a disk that hangs."""
_JUDGED = ("load", "train")
"""Phases in which a step is taken, and nothing that may rightly take long."""


@contextmanager
def watched(
    run: RunDirectory,
    ranks: Ranks,
    attempt: int,
    position: Callable[[], dict[str, object]],
    grace_s: float | None = None,
) -> Iterator[None]:
    """Context of one attempt, in which this rank and the others are watched; collective.

    Args:
        run: where a finding is written down.
        ranks: all of them; one is not watched.
        attempt: number of the attempt.
        position: step and phase, at any time.
        grace_s: from a signal to SIGKILL, if that is known.
    """
    if ranks.world_size == 1:
        yield
        return
    name = ranks.on_main(lambda: uuid4().hex)
    heartbeats = Heartbeats(lambda: PrefixStore(name, connected(_TIMEOUT)), ranks.rank, ranks.world_size)
    watchdog = Watchdog(run, ranks.rank, heartbeats, attempt, position, grace_s)
    threads = [
        threading.Thread(target=heartbeats.beat, args=(lambda: watchdog.heartbeat,), name="heartbeats", daemon=True),
        threading.Thread(target=watchdog.watch, name="watchdog", daemon=True),
    ]
    for thread in threads:
        thread.start()
    try:
        yield
        watchdog.phase = OVER
    finally:
        heartbeats.is_over.set()
        for thread in threads:
            thread.join(STOOD_STILL_S)


class Watchdog:
    """The judgements of one rank."""

    def __init__(
        self,
        run: RunDirectory,
        rank: int,
        heartbeats: Heartbeats,
        attempt: int,
        position: Callable[[], dict[str, object]],
        grace_s: float | None = None,
    ) -> None:
        self._run, self._rank, self._heartbeats, self._attempt = run, rank, heartbeats, attempt
        self._position, self._grace_s = position, grace_s
        self._where = position()
        self._since = self._looked = self._step_since = self._judged_since = time.monotonic()
        self._steps: deque[float] = deque(maxlen=_STEPS)
        """Seconds of the latest steps, without what other phases took."""
        self._finding, self.phase = "", ""

    @property
    def heartbeat(self) -> Heartbeat:
        """Where this rank stands."""
        where = self._position()
        phase = self.phase or str(where["phase"])
        return Heartbeat(0, int(str(where["step"])), phase, socket.gethostname(), self._finding)

    def watch(self) -> None:
        """Look until it is over."""
        while not self._heartbeats.is_over.wait(_LOOK_S):
            finding = self.check()
            if self._cannot_stop() or (finding and signals.first_signal() is not None):
                self._stop()
            if finding:
                self._end(finding)

    def check(self) -> str:
        """Why this process is to end; empty if it is not."""
        now, where = time.monotonic(), self._position()
        if now - self._looked > STOOD_STILL_S:
            self._since = self._step_since = self._judged_since = now
            self._heartbeats.wait_again(now)
        self._looked = now
        self._time(now, where)
        of_rank_0 = self._heartbeats.seen[0][0] if self._rank else Heartbeat()
        return of_rank_0.finding or self._silent(now) or self._stuck(now)

    def _time(self, now: float, where: dict[str, object]) -> None:
        """Time the step that ended, if one has."""
        if taken := int(str(where["step"])) - int(str(self._where["step"])):
            self._steps.append((now - self._step_since) / taken)
        if taken or where["phase"] not in _JUDGED:
            self._step_since = now
        if where != self._where:
            self._where, self._since = where, now

    def _window_s(self, least_s: float) -> float:
        """Time without progress that is no sign of a fault."""
        return max(least_s, _TIMES * median_low(self._steps)) if self._steps else least_s

    def _silent(self, now: float) -> str:
        """Judge whether a process has stopped."""
        seen, unanswered_s = self._heartbeats.seen, now - self._heartbeats.answered
        if now - self._since <= SILENT_S or (self._rank and seen[0][0].phase == OVER):
            return ""
        cause = "it was stopped, or its machine or the network hangs"
        if unanswered_s > SILENT_S:
            return f"{store_host()}, the host of the ranks' store, has not answered for {unanswered_s:.0f} s: {cause}"
        if unanswered_s > STOOD_STILL_S:
            return ""
        silent = [rank for rank, (last, since) in seen.items() if now - since > SILENT_S and last.phase != OVER]
        return f"{self._stand(silent[0])} and gives no sign of life: {cause}" if silent else ""

    def _stuck(self, now: float) -> str:
        """Judge whether nothing progresses although all processes live."""
        if self._rank:
            return ""
        phases = {last.phase for last, _ in self._heartbeats.seen.values()} | {str(self._where["phase"])}
        if not phases <= set(_JUDGED):
            self._judged_since = now
        waits_s = now - max(self._since, self._judged_since)
        if not self._steps or waits_s <= self._window_s(STUCK_S):
            return ""
        stands = {rank: (last.step, last.phase) for rank, (last, _) in self._heartbeats.seen.items()}
        stands[0] = int(str(self._where["step"])), str(self._where["phase"])
        last = min(stands, key=lambda rank: stands[rank])  # of one step, who loads before who trains
        return f"{self._stand(last)}, no rank after an earlier one, and none has taken a step for {waits_s:.0f} s"

    def _stand(self, rank: int) -> str:
        last = self._heartbeats.seen[rank][0] if rank != self._rank else self.heartbeat
        return f"rank {rank} was last seen after step {last.step} (phase {last.phase}, host {last.host})"

    def _cannot_stop(self) -> bool:
        """Whether a signal came, and what would end this rank in order does not come in time."""
        heard_s = signals.seconds_since_signal()
        if self._grace_s is not None or heard_s is None:
            return is_over(self._grace_s, _LOOK_S)
        waits_s = min(heard_s, self._looked - self._since)
        return waits_s > self._window_s(SILENT_S) and self._position()["phase"] in ("start", *_JUDGED)

    def _stop(self) -> NoReturn:
        """End this process, which got a signal and is blocked where no exception reaches it."""
        by, where = signals.first_signal(), self._position()
        assert by is not None
        at = f"at step {where['step']}" if where["step"] else "before the first step"
        self._leave(
            f"stopped by {by.name} {at}; not saved, as rank {self._rank} was blocked (phase {where['phase']}) by "
            "others; the stacks of its threads are above; the run continues from its newest checkpoint",
            f"stopped by {by.name} {at}",
        )
        os._exit(signals.STATUS[by])

    def _end(self, finding: str) -> NoReturn:
        """End this process, which may be blocked where no exception reaches it."""
        self._finding = finding
        line = {
            **{"time": records.now(), "attempt": self._attempt, "rank": self._rank, "class": PEER.name},
            **self._where,
            **{"error": HANG, "message": finding, "traceback": ""},
        }
        self._leave(
            f"error: rank {self._rank} is blocked: {finding}; the stacks of its threads are above", PEER.name, line
        )
        time.sleep((3 if self._rank else 2) * BEAT_S)  # all have read what rank 0 found, and it ends first
        os._exit(PEER.status)

    def _leave(self, words: str, end: str, line: dict[str, object] | None = None) -> None:
        """Say why this process ends, and write it down as far as the disk answers."""
        faulthandler.dump_traceback(file=sys.stderr, all_threads=True)
        print(words, file=sys.stderr, flush=True)
        forward_exit_status(words)

        def write() -> None:
            with suppress(OSError):
                if line:
                    records.append(self._run.rank_file(self._rank), line)
                if self._rank == 0:
                    self._run.end_attempt(self._attempt, end)

        writer = threading.Thread(target=write, daemon=True)
        writer.start()
        writer.join(_WRITE_S)
