"""Scores of a validation, as the loop reads them.

In: predictions of each objective, mean losses. Out: numbers for metrics.jsonl, a line, the number that chooses a
checkpoint. Kept: nothing.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

from finetune.metrics.scores import TaskScores


@dataclass(frozen=True, slots=True)
class FineTuneScores:
    """What a model is worth on one part of the split (a `zymogen.trainer.job.ValidationScores`)."""

    tasks: TaskScores
    losses: Mapping[str, float]
    """Mean loss of each objective that has a label in the part."""
    part: str
    """Name of the part."""

    def numbers(self) -> dict[str, dict[str, float]]:
        """All scores: name of a task -> name of a number -> number."""
        found = self.tasks.numbers()
        for name, loss in self.losses.items():
            found.setdefault(name, {})["loss"] = loss
        skill = self.tasks.stopping_metric
        return found if math.isnan(skill) else {"all_tasks": {"skill": skill}, **found}

    def line(self) -> str:
        """A summary for the console, without the step."""
        return f"{self.part}: {self.tasks.line()}"

    @property
    def rank_metric(self) -> float:
        """The lower, the better: 1 less the mean skill of the tasks; the sum of the losses where no task has one.

        Whether a task is defined follows from the part's labels alone, so all validations of a run give the same one of
        the two.
        """
        skill = self.tasks.stopping_metric
        return math.fsum(self.losses.values()) if math.isnan(skill) else 1.0 - skill
