"""The validations of an attempt: what each found, and of a job that selects a checkpoint, which one was best.

In: a model at a step. Out: its scores, logged; whether training ends because none was better for long enough. Kept:
`BestCheckpoint`, in each checkpoint.
"""

from dataclasses import asdict
from typing import Any, Generic, TypeVar

from torch import nn

from zymogen.trainer.checkpoint.best import BestCheckpoint, drop_if_missing
from zymogen.trainer.checkpoint.manifest import BEST, TrainerState
from zymogen.trainer.engine.engine import Engine
from zymogen.trainer.job import Job, ValidationScores
from zymogen.trainer.metrics_log import MetricsLog
from zymogen.trainer.run.directory import RunDirectory

S = TypeVar("S", bound=ValidationScores)


class ValidationHistory(Generic[S]):
    """The validations of one attempt. Every rank has one, and calls its methods at the same time.

    Args:
        job: knows the scores.
        engine: how the run is spread.
        log: where scores are written.
        run: holds the checkpoints.
        state: where the attempt begins.
    """

    def __init__(self, job: Job[S], engine: Engine, log: MetricsLog, run: RunDirectory, state: TrainerState) -> None:
        self._job, self._engine, self._log = job, engine, log
        self._latest: tuple[int, S] | None = None
        kept = BestCheckpoint.of(state)
        self.best: BestCheckpoint | None = (
            engine.on_main(lambda: drop_if_missing(kept, run.checkpoints)) if job.keeps_best else None
        )
        """The best one of the run so far; None of a job that selects no checkpoint."""

    @property
    def entry(self) -> dict[str, dict[str, Any]]:
        """What a checkpoint keeps of the best one."""
        return {BEST: asdict(self.best)} if self.best and self.best.validated else {}

    def score(self, model: nn.Module, state: TrainerState) -> S:
        """Score the weights as they are, and write it down; collective."""
        scores = self._job.evaluate(model)
        self._log.validation(state, scores)
        self._latest = state.step, scores
        return scores

    def at_end(self, model: nn.Module, state: TrainerState) -> S:
        """The scores of the last step; collective. They are written down once, however often a run is started."""
        if self._latest and self._latest[0] == state.step:
            return self._latest[1]
        if self.best is not None and self.best.validated == state.step:
            return self._job.evaluate(model)
        return self.score(model, state)

    def count(self, scores: S, step: int) -> BestCheckpoint:
        """Count a validation of this step, and return which one was best before; collective."""
        assert self.best is not None, "the job selects no checkpoint"
        before = self.best
        self.best = before.after(step, self._engine.on_main(lambda: scores.rank_metric))  # alike on every rank
        return before

    def is_missing(self, step: int) -> bool:
        """Whether a step that was to be validated was not, because a signal ended that."""
        return self.best is not None and self.best.validated < step

    def in_words(self) -> str:
        """How the validation that was counted last compares with those before it."""
        assert self.best is not None, "the job selects no checkpoint"
        if self.best.score is None:
            words = "no score was a finite number so far"
        else:
            words = f"best at step {self.best.step}" if self.best.since else "the best so far"
        return (
            f"{words}; none of {self.best.since} since then was better: training ends"
            if self.patience_exhausted
            else words
        )

    @property
    def patience_exhausted(self) -> bool:
        """Whether so many in a row were no better that training ends."""
        patience = self._job.patience
        return patience is not None and self.best is not None and self.best.since >= patience
