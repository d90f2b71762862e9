"""The writer: a thread of this rank that writes one checkpoint while training continues; and how long writes fail.

In: what is to be done. Out: its result or its error, once the main thread asks. Kept: for how long saves have failed
since the newest checkpoint, over all starts: a line of faults.jsonl for each, by which the next start continues to
count. Time between two starts is not counted, and clocks are not compared.

Nobody joins the thread without a limit: one that waits for a disk that does not answer cannot be ended, and must keep
neither a step nor the end of the process waiting.

Where training keeps all cores busy, hashing and writing would take the time of a core from the threads of one step,
which wait for each other. The thread of a save that is not small therefore asks for few turns while others compute (on
Linux, where a thread may do so), and has a core to itself as soon as the main thread waits for it.
"""

import os
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from time import monotonic
from typing import Generic, TypeVar

from pretrain.checkpoint.manifest import CheckpointManifest
from pretrain.run import records
from pretrain.run.directory import RunDirectory

T = TypeVar("T")
_NICE = 15
"""About one turn for thirty of a busy thread, so that the work of a save is spread over some steps. With 10, most of a
save falls into one step, which takes 1.1 to 1.3 times as long on two cores; with 19 it need not end beside others."""
_SMALL = 16 << 20
"""Bytes of a save that takes as many turns as it needs: some hundredths of a second."""


_SECONDS = "saves_failed_for_s"


class BackgroundWrite(Generic[T]):
    """What one thread does, from now on.

    Args:
        work: is called in the thread, with what says whether it is given up.
        num_bytes: that it writes, about.
        began: when what it is a part of began, by `time.perf_counter`; None: now.
    """

    def __init__(self, work: Callable[[Callable[[], bool]], T], num_bytes: int, began: float | None = None) -> None:
        self._work, self._given_up, self._has_ended = work, threading.Event(), threading.Event()
        self._makes_way = num_bytes > _SMALL and sys.platform == "linux"
        self._began = time.perf_counter() if began is None else began
        self._took: float | None = None
        self.result: T | None = None
        """What it returned; None if it has not ended, or by an error."""
        self.error: BaseException | None = None
        """What ended it, if anything did; to be read once it has ended."""
        threading.Thread(target=self._run, name="checkpoint", daemon=True).start()

    @property
    def seconds(self) -> float:
        """How long it has taken so far, or took."""
        return time.perf_counter() - self._began if self._took is None else self._took

    @property
    def has_ended(self) -> bool:
        """Whether there is a result or an error."""
        return self._has_ended.is_set()

    def wait(self, seconds: float) -> bool:
        """Wait for its end, at most so long; whether it has ended."""
        return self._has_ended.wait(seconds)

    def give_up(self) -> None:
        """Have it wait for nothing that other ranks would do; what it does itself, it does to the end."""
        self._given_up.set()

    def _run(self) -> None:
        if self._makes_way:
            with suppress(OSError):  # some containers refuse it; the save then takes turns like any other thread
                os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICE)  # of this thread alone
        try:
            self.result = self._work(self._given_up.is_set)
        except BaseException as error:  # raised again by the main thread
            self.error = error
        self._took = time.perf_counter() - self._began
        self._has_ended.set()


class SaveFailures:
    """The failed saves since the newest checkpoint; rank 0's clock decides for all.

    Args:
        run: where they are written down.
        attempt: number of the attempt.
        newest: the checkpoint that the attempt begins with.
    """

    def __init__(self, run: RunDirectory, attempt: int, newest: CheckpointManifest | None) -> None:
        self._run, self._attempt = run, attempt
        lines = [line for line in records.read(run.faults) if _SECONDS in line]
        is_over = lines and newest and (newest.attempt, newest.step) > (lines[-1]["attempt"], lines[-1]["step"])
        self.before_s = float(lines[-1][_SECONDS]) if lines and not is_over else 0.0
        """Seconds in which earlier starts saw them fail."""
        self._first: float | None = None
        self._latest = 0.0

    @property
    def latest_s(self) -> float:
        """For how many seconds the latest one has failed."""
        return monotonic() - self._latest

    def failed(self, step: int) -> float:
        """Note that the save of a step failed; for how many seconds saves have failed now."""
        self._latest = monotonic()
        self._first = self._latest if self._first is None else self._first
        return self.note(step, self._latest - self._first)

    def note(self, step: int, for_s: float) -> float:
        """Write down that in this start saves have failed for some seconds; for how many they have in all."""
        line = {"attempt": self._attempt, "time": records.now(), "step": step, _SECONDS: self.before_s + for_s}
        with suppress(OSError):  # a disk that refuses this, too: the next start counts from its own first failure
            records.append(self._run.faults, line)
        return self.before_s + for_s

    def succeeded(self) -> None:
        """Forget them: there is a checkpoint."""
        self.before_s, self._first = 0.0, None
