"""The best checkpoint of a run: the one whose validation had the lowest score.

In: a score for each validation. Out: which step was best, and how many validations have passed since. Kept:
`BestCheckpoint`, in each checkpoint of a job that selects one. Retention leaves that checkpoint alone.
"""

import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Self

from zymogen.console.safe_text import log
from zymogen.processes.errors import CheckpointError
from zymogen.trainer.checkpoint.canonical import Count, InvalidCheckpointError
from zymogen.trainer.checkpoint.load import Check, VerifiedCheckpoint, newest_valid, unreadable, verify
from zymogen.trainer.checkpoint.manifest import BEST, TrainerState, checkpoint_name


@dataclass(frozen=True, kw_only=True, slots=True)
class BestCheckpoint:
    """The best validation of a run so far."""

    score: float | None = None
    """Its score, the lower the better; None where no validation has had a finite one."""
    step: Count = 0
    """Its step, whose checkpoint is kept; 0 where there is none."""
    since: Count = 0
    """Validations after it, none of which was better."""
    validated: Count = 0
    """Step of the latest validation that was counted; 0 before the first."""

    def after(self, step: int, score: float) -> "BestCheckpoint":
        """The best one once a further step was validated; a score that is not finite is better than none."""
        if math.isfinite(score) and (self.score is None or score < self.score):
            return BestCheckpoint(score=float(score), step=step, validated=step)
        return replace(self, since=self.since + 1, validated=step)

    @classmethod
    def of(cls, trainer: TrainerState) -> Self:
        """What a checkpoint kept; the one of a run without validations if it kept nothing.

        Raises:
            InvalidCheckpointError: it is not such a record.
        """
        return trainer.entry(BEST, cls) or cls()


def best_valid(checkpoints_dir: Path, check: Check | None = None) -> VerifiedCheckpoint:
    """The best checkpoint of a run.

    Args:
        checkpoints_dir: where it is.
        check: reads what is needed of it, as of `load.verify`.

    Raises:
        FloatingPointError: no validation had a finite score.
        CheckpointError: it is not whole.
    """
    newest = newest_valid(checkpoints_dir, writer=False, check=unreadable)
    best = BestCheckpoint.of(newest.trainer) if newest else BestCheckpoint()
    if not best.step:
        raise FloatingPointError(
            f"{checkpoints_dir}: no validation of this run had a score that is a finite number, so that no checkpoint "
            "is the best one; look at the validations in metrics.jsonl; where the loss was not finite either, lower "
            "schedule.peak_lr and choose another run.directory"
        )
    path = checkpoints_dir / checkpoint_name(best.step)
    try:
        return verify(path, check)
    except InvalidCheckpointError as error:
        raise CheckpointError(
            path,
            f"the best checkpoint of the run is not whole: {error}",
            "restore it from a backup, or choose another run.directory and train again",
        ) from error


def drop_if_missing(best: BestCheckpoint, checkpoints_dir: Path) -> BestCheckpoint:
    """`best`, or one without a score if its checkpoint is gone or damaged: the best of what follows is kept then."""
    if not best.step:
        return best
    path = checkpoints_dir / checkpoint_name(best.step)
    try:
        verify(path)
    except InvalidCheckpointError as error:
        log(
            f"{path}: the best checkpoint is not whole, and is forgotten: {error}; the best of the validations from "
            "here on takes its place"
        )
        return replace(best, score=None, step=0)
    return best
