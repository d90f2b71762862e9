"""Reading a run: its settings, metrics, scores, attempts, faults and checkpoints, as far as they are there.

In: a run directory, in which a process may be writing. Out: a `RunReader`. Kept: nothing. Lines that are damaged or
half-written are left out, and so are steps that were lost in a restart.
"""

import math
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from zymogen.trainer.run import records
from zymogen.trainer.run.attempts import KILLED, AttemptRecords, attempts
from zymogen.trainer.run.directory import RunDirectory

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

Scores = Mapping[str, Mapping[str, float | None]]
"""Name of what was scored -> name of a number -> its value; None where it was not finite."""
_POSITION = ("step", "tokens", "attempt")


class RunValidation(NamedTuple):
    """The scores at one step."""

    step: int
    tokens: int
    time: float
    """In seconds since 1970."""
    scores: Scores
    test_set: str
    """Hash of the frozen set; empty of a job without one."""
    part: str
    """What was scored: "validation", or "training" where a job has nothing else."""


class RunReader:
    """A run as its directory describes it at the time of reading.

    Args:
        root: the run directory.
        last_step: later steps are left out.

    Attributes:
        root: the run directory.
        record: content of run.json.
        attempts: all attempts, in order.
        lines: lines of metrics.jsonl without those of lost steps.
        saves: when each checkpoint was written, in seconds since 1970, those of lost steps included.
        failed_saves: when one could not be written.

    Raises:
        ValueError: it is no run directory of this program.
    """

    def __init__(self, root: Path, last_step: float = math.inf) -> None:
        self.root, self._directory = root, RunDirectory(root)
        self.record = self._directory.read()
        written = [
            line
            for line in records.read(self._directory.metrics)
            if all(isinstance(line.get(name), int) for name in _POSITION)
        ]
        self.attempts = attempts(AttemptRecords.read(self._directory), written)
        held = {number: min(last_step, self._held_until(number)) for number in {line["attempt"] for line in written}}
        self.lines = [line for line in written if line["step"] <= held[line["attempt"]]]
        self.saves, self.failed_saves = (
            tuple(records.seconds(line["time"]) for line in written if key in line)
            for key in ("checkpoint_s", "save_error")
        )

    def _held_until(self, attempt: int) -> float:
        """The last step of an attempt that the run still has: a later attempt may begin before its end."""
        return min((each.base_step for each in self.attempts if each.attempt > attempt), default=math.inf)

    @property
    def settings(self) -> Mapping[str, Any]:
        """The recipe of the latest attempt, every field, by sections."""
        return self.record.recipe

    @cached_property
    def metrics(self) -> "Mapping[str, NDArray[np.float64]]":
        """Name -> (logged steps,) its numbers; NaN where one was not finite or not logged."""
        import numpy as np

        steps = [line for line in self.lines if "loss" in line]
        names = dict.fromkeys(name for line in steps for name in line if name not in ("time", "attempt"))
        return {name: np.array([number(line.get(name)) for line in steps]) for name in names}

    def metric(self, name: str) -> "NDArray[np.float64]":
        """Return one of the metrics, NaN throughout where it was never logged."""
        import numpy as np

        return self.metrics.get(name, np.full(len(self.metrics.get("step", ())), np.nan))

    @cached_property
    def validations(self) -> tuple[RunValidation, ...]:
        """All validations, in order."""
        return tuple(
            RunValidation(
                line["step"], line["tokens"], records.seconds(line["time"]), line[part], line.get("set", ""), part
            )
            for line in self.lines
            for part in ("validation", "training")
            if part in line
        )

    @property
    def scores(self) -> Scores:
        """Scores of the last validation; empty before the first."""
        return self.validations[-1].scores if self.validations else {}

    @property
    def steps(self) -> int:
        """Number of the last step that was written down."""
        return max((line["step"] for line in self.lines), default=0)

    @property
    def tokens(self) -> int:
        """Tokens seen until then."""
        return max((line["tokens"] for line in self.lines), default=0)

    @property
    def faults(self) -> list[dict[str, Any]]:
        """Lines of faults.jsonl: numerical faults that ended an attempt, and failed saves."""
        return list(records.read(self._directory.faults))

    @property
    def checkpoints(self) -> dict[int, Path]:
        """Step -> folder of each checkpoint, whatever is in it, the oldest first."""
        steps = {path: path.name.removeprefix("step-") for path in self._directory.checkpoints.glob("step-*")}
        return dict(sorted((int(step), path) for path, step in steps.items() if step.isdecimal()))

    @property
    def is_finished(self) -> bool:
        """Whether the run has trained to its last token."""
        return bool(self.attempts) and self.attempts[-1].exit == "finished"

    @property
    def has_ended(self) -> bool:
        """Whether the last attempt has written how it ended; a killed one has not."""
        return bool(self.attempts) and self.attempts[-1].exit != KILLED


def number(value: Any) -> float:
    """Return a number of a line; NaN for null, which stands for NaN and infinity."""
    return math.nan if value is None else float(value)
