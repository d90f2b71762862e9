"""The watchdog: several ranks that wait for one that will never come end, and say which one it is.

In: where this rank stands. Out: the end of this process, with status 71, or that of a signal that came. Kept:
`ranks/rank-NNNNN.alive`, a few bytes that a thread of each rank writes twice a second, until the rank ends.

A rank that is stopped, or whose machine hangs, closes no connection: its peers wait in a collective until
`parallel.timeout`, or for as long as the longest build. Two things are watched once training has begun:

- A rank whose file has not changed for `FLOOR_S`, while this one makes no progress either. Its process stands still.
- No step, although all ranks are training, for `_TIMES` times as long as the longest one so far, and at least
  `FLOOR_S`. They wait in a collective for what does not come.

A rank that got a signal and cannot end in order, because others that it waits for never come, ends too, with the
status of the signal: before `run.grace_s` is over, or without that, when it has made no progress for as long in a
build, while it waits for data, or in a step.

A rank that waits for its data, validates, saves or publishes may take its time, as may everything at a start. Clocks of
machines are not compared: each rank times by its own how long another one's file has stayed the same. One that finds
that it stood still itself begins again to count, and so does one that cannot write: the others may live, and train,
and be unable to show it. One process has nobody that waits for it, and is not watched.
"""

import faulthandler
import math
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from pretrain.run import records, stop
from pretrain.run.classes import HANG, PEER
from pretrain.run.directory import RunDirectory
from pretrain.run.error_file import tell_launcher
from pretrain.run.grace import is_over

FLOOR_S = 30.0
"""Shortest time without progress that counts."""
_TIMES = 20
_LOOK_S = 0.5
_STOOD_STILL_S = 5.0
"""If so much time lies between two looks, this process was stopped, or starved, itself."""
_TRAINING = "train"
_STARTING = "start"
_WAITING = (_STARTING, "load", _TRAINING)
"""Phases in which a rank waits for others, and for nothing that may rightly take long once a signal came."""


@contextmanager
def watched(
    run: RunDirectory,
    rank: int,
    ranks: int,
    attempt: int,
    position: Callable[[], dict[str, object]],
    grace_s: float | None = None,
) -> Iterator[None]:
    """Context of one attempt, in which this rank and the others are watched.

    Args:
        run: where the signs of life are.
        rank: number of this process.
        ranks: how many there are; one is not watched.
        attempt: number of the attempt.
        position: step and phase, at any time.
        grace_s: from a signal to SIGKILL, if that is known.
    """
    if ranks == 1:
        yield
        return
    watchdog = _Watchdog(run, rank, ranks, attempt, position, grace_s)
    folder = watchdog.file(rank).parent
    # Made here and never by the thread: rank 0 may be removing all of a start that failed.
    made = [path for path in (folder, *folder.parents) if not path.exists()]
    with suppress(OSError):
        folder.mkdir(parents=True, exist_ok=True)
    watchdog.look()  # a sign of life at once
    thread = threading.Thread(target=watchdog.watch, name="watchdog", daemon=True)
    thread.start()
    try:
        yield
    finally:
        watchdog.is_over.set()
        thread.join(_STOOD_STILL_S)
        with suppress(OSError):
            watchdog.file(rank).unlink(missing_ok=True)
            folder.rmdir()  # by the last one, unless there are errors
            for path in made[1:]:
                path.rmdir()


class _Watchdog:
    """What one rank sees of all."""

    def __init__(
        self,
        run: RunDirectory,
        rank: int,
        ranks: int,
        attempt: int,
        position: Callable[[], dict[str, object]],
        grace_s: float | None = None,
    ) -> None:
        self._grace_s = grace_s
        self._run, self._rank, self._attempt, self._position = run, rank, attempt, position
        self._others = [other for other in range(ranks) if other != rank]
        self._seen: dict[int, tuple[str, float]] = {}
        """Other rank -> the content of its file, and since when it is the same."""
        self._where: dict[str, object] = {}
        self._since = self._looked = time.monotonic()
        self._mute = -math.inf
        """When this rank last could not show where it stands. What others show may be as old."""
        self._longest_s: float | None = None
        """The longest step so far; the first one of a start is not counted, as it sets much up."""
        self._number = 0
        self.is_over = threading.Event()

    def file(self, rank: int) -> Path:
        """Where a rank shows that it lives."""
        return self._run.rank_file(rank).with_suffix(".alive")

    def watch(self) -> None:
        """Look until it is over."""
        while not self.is_over.wait(_LOOK_S):
            judges = self.look()
            reason = self._reason() if judges else None
            if self._cannot_stop() or (reason is not None and stop.received() is not None):
                self._stop()
            if reason is not None:
                self._end(reason)

    def look(self) -> bool:
        """See where all ranks stand; whether there is something to judge."""
        now, where = time.monotonic(), self._position()
        if now - self._looked > _STOOD_STILL_S:
            self._since = now
            self._seen = {rank: (content, now) for rank, (content, _) in self._seen.items()}
        self._looked = now
        if where != self._where:
            phases = {where["phase"], self._where.get("phase")}
            if phases == {_TRAINING}:
                self._longest_s = max(self._longest_s or 0.0, now - self._since)
            self._where, self._since = where, now
        self._number += 1
        try:
            signs = f"{self._attempt} {self._number} {where['step']} {where['phase']}"
            self.file(self._rank).write_text(signs)
        except OSError:  # of the disk: the saves tell of it; or the start has failed and its files are gone
            self._mute = now
        for rank in self._others:
            content = _content(self.file(rank))
            if content is None or not content.startswith(f"{self._attempt} "):
                self._seen.pop(rank, None)  # it has not begun, or has ended
            elif self._seen.get(rank, ("", 0.0))[0] != content:
                self._seen[rank] = content, now
        # Signs of life are given from the start on: a rank may stop between its first step and its next sign.
        return where["phase"] != _STARTING

    @property
    def _window_s(self) -> float:
        """How long no progress is no sign of a fault."""
        return max(FLOOR_S, _TIMES * (self._longest_s or 0.0))

    def _cannot_stop(self) -> bool:
        """Whether a signal came, and what would end this rank in order does not come in time."""
        heard_s = stop.heard_s()
        if self._grace_s is not None or heard_s is None:
            return is_over(self._grace_s, _LOOK_S)
        waits_s = min(heard_s, self._looked - self._since)
        return waits_s > self._window_s and self._position()["phase"] in _WAITING

    def _reason(self) -> str | None:
        """Why this rank waits in vain, if it does."""
        waits_s = self._looked - max(self._since, self._mute)
        silent = [rank for rank, (_, since) in self._seen.items() if self._looked - since > FLOOR_S]
        if silent and waits_s > FLOOR_S:
            return f"{self._stand(silent[0])} and gives no sign of life: its process was stopped, or its machine hangs"
        if self._longest_s is None or waits_s <= self._window_s:
            return None
        phases = {content.split(" ")[3] for content, _ in self._seen.values()} | {self._where["phase"]}
        if phases != {_TRAINING}:
            return None
        last = min([self._rank, *self._seen], key=self._step)
        return f"{self._stand(last)}, no rank after an earlier one, and none has taken a step for {waits_s:.0f} s"

    def _step(self, rank: int) -> int:
        return int(str(self._where["step"])) if rank == self._rank else int(self._seen[rank][0].split(" ")[2])

    def _stand(self, rank: int) -> str:
        phase = self._where["phase"] if rank == self._rank else self._seen[rank][0].split(" ")[3]
        return f"rank {rank} was last seen after step {self._step(rank)} (phase {phase})"

    def _stop(self) -> None:
        """End this process, which got a signal and waits where no exception reaches it."""
        faulthandler.dump_traceback(file=sys.stderr, all_threads=True)
        by, where = stop.received(), self._position()
        assert by is not None
        at = f"at step {where['step']}" if where["step"] else "before the first step"
        with suppress(OSError):
            if self._rank == 0:
                self._run.end_attempt(self._attempt, f"stopped by {by.name} {at}")
        words = (
            f"stopped by {by.name} {at}; not saved, as rank {self._rank} waited in vain (phase {where['phase']}) "
            "for the others; the stacks of its threads are above; the run continues from its newest checkpoint"
        )
        print(words, file=sys.stderr, flush=True)
        tell_launcher(words)
        os._exit(stop.STATUS[by])

    def _end(self, reason: str) -> None:
        """End this process, which may wait where no exception reaches it."""
        faulthandler.dump_traceback(file=sys.stderr, all_threads=True)
        line = {
            **{"time": records.now(), "attempt": self._attempt, "rank": self._rank, "class": PEER.name},
            **self._where,
            **{"error": HANG, "message": reason, "traceback": ""},
        }
        with suppress(OSError):
            records.append(self._run.rank_file(self._rank), line)
            if self._rank == 0:
                self._run.end_attempt(self._attempt, PEER.name)
        words = f"error: rank {self._rank} waited in vain: {reason}; the stacks of its threads are above"
        print(words, file=sys.stderr, flush=True)
        tell_launcher(words)
        os._exit(PEER.status)


def _content(path: Path) -> str | None:
    try:
        content = path.read_text()
    except OSError:
        return None
    return content if content.count(" ") == 3 else None
