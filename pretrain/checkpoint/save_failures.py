"""For how long the saves of a run have failed since its newest checkpoint, over all starts.

In: a failed save, or one that takes long. Out: seconds. Kept: a line of faults.jsonl for each, by which the next start
goes on counting. Time between two starts is not counted, and clocks are not compared.
"""

from contextlib import suppress
from time import monotonic

from pretrain.checkpoint.manifest import Manifest
from pretrain.run import records
from pretrain.run.directory import RunDirectory

_SECONDS = "saves_failed_for_s"


class SaveFailures:
    """The failed saves since the newest checkpoint; rank 0's clock decides for all.

    Args:
        run: where they are written down.
        attempt: number of the attempt.
        newest: the checkpoint that the attempt begins with.
    """

    def __init__(self, run: RunDirectory, attempt: int, newest: Manifest | None) -> None:
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
