"""Whether steps continue while the storage answers no flush for a minute, and how long the longest pause is.

    python -m benchmarks.checkpoint.blocked
    python -m benchmarks.checkpoint.blocked --quick

In: drawn proteins. Out: a table and the JSON line of `benchmarks.report`. Kept: nothing; the run is in the temporary
directory.

One process trains `esm2_60k` as `python -m pretrain` does, with a checkpoint every 100 steps. From one save on no flush
of any thread returns until the time is over. The steps of that time are compared with as many before and after it;
then SIGTERM ends the run. A save that is due waits up to two seconds for the one before it, once: this is the longest
pause between two steps, and a row of its own.
"""

import argparse
import os
import signal
import sys
import tempfile
import time
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.checkpoint.recipe import written
from benchmarks.report import Row, report
from benchmarks.results.record import parse_options
from pretrain.__main__ import main as pretrain
from zymogen.trainer import loop
from zymogen.trainer.checkpoint.load import find, verify

EVERY = 100
"""Steps from one save to the next."""
SLOWER = 1.1
"""Most time of a step meanwhile, over a step before and after."""
WAIT_S, PAUSE_S = 2.5, 0.5
"""The longest pause, and the longest but one, which a busy machine may make: to wait for a flush takes seconds."""
_PREEMPTED = 75


class Storage:
    """Flushes that do not return for some time, from the first one after so many steps; and when each step began.

    Args:
        apart: steps before, and after.
        seconds: of silence.
    """

    def __init__(self, apart: int, seconds: float) -> None:
        self._apart, self._seconds, self._left = apart, seconds, apart
        self.steps: list[float] = []
        self.began = self.ended = float("inf")
        self._fsync: Any = os.fsync
        self._step: Any = loop.train_step

    def __enter__(self) -> "Storage":
        os.fsync, loop.train_step = self._flush, self._taken  # type: ignore[assignment]  # put back at the end
        return self

    def __exit__(self, *error: object) -> None:
        os.fsync, loop.train_step = self._fsync, self._step

    def is_silent(self, when: float) -> bool:
        """Whether no flush returned then."""
        return self.began <= when < self.ended

    def _flush(self, handle: int) -> None:
        if len(self.steps) > self._apart and self.began == float("inf"):
            self.began = time.perf_counter()
            self.ended = self.began + self._seconds
        while self.is_silent(now := time.perf_counter()):
            time.sleep(self.ended - now)
        self._fsync(handle)

    def _taken(self, *arguments: Any, **named: Any) -> Any:
        self.steps.append(time.perf_counter())
        if self.steps[-1] >= self.ended:
            self._left -= 1
            if self._left == 0:
                os.kill(os.getpid(), signal.SIGTERM)
        return self._step(*arguments, **named)


def measure(apart: int, seconds: float) -> dict[str, float]:
    """Train; seconds a step, medians, and the two longest pauses."""
    with tempfile.TemporaryDirectory() as folder, Storage(apart, seconds) as storage:
        status = pretrain([str(written(Path(folder), "esm2_60k", EVERY))])
        saved = [verify(path).manifest.step for path in find(Path(folder) / "run/checkpoints")]
    if status != _PREEMPTED or len(storage.steps) not in saved:
        sys.exit(f"the run ended with {status} after step {len(storage.steps)}, and has checkpoints of steps {saved}")
    pauses = [(later - step, storage.is_silent(step)) for step, later in pairwise(storage.steps)]
    meanwhile = sorted(pause for pause, silent in pauses if silent)
    others = [pause for pause, silent in pauses if not silent]
    return {
        "steps meanwhile": len(meanwhile),
        "other steps": len(others),
        "a step meanwhile": median(meanwhile),
        "another step": median(others),
        "longest pause": meanwhile[-1],
        "longest pause but one": meanwhile[-2],
    }


def main(arguments: list[str] | None = None) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="five seconds: that it runs")
    options = parse_options(parser, arguments)
    quick = options.quick
    found = measure(*((2 * EVERY, 5.0) if quick else (20 * EVERY, 60.0)))
    rows = [
        Row("a step meanwhile", "another step", found["a step meanwhile"] / found["another step"], SLOWER, "lower"),
        Row("the wait of one save, seconds", "the bar", found["longest pause"], WAIT_S, "lower"),
        Row("longest other pause, seconds", "the bar", found["longest pause but one"], PAUSE_S, "lower"),
    ]
    report("blocked", rows, others=found, record=options.record)


if __name__ == "__main__":
    main()
