"""Scores of a validation, as the loop reads them.

In: predictions of each objective, mean losses. Out: numbers for metrics.jsonl, a line, the number that chooses a
checkpoint. Kept: nothing.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from finetune.metrics.predictions import LabelPredictions, by_output
from finetune.metrics.scores import TaskScore, TaskScores
from finetune.metrics.scoring import FEWEST_LABELS, untrained
from finetune.metrics.weighted import of_all, ranking_metric
from finetune.tasks.task import Task


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


def ranked(objective: Task, predictions: LabelPredictions) -> TaskScores:
    """The ranking metric of each task alone, the same to the last bit as that of `finetune.metrics.scoring.score`.

    Raises:
        ValueError: a prediction is not a finite number or not a probability, or a label is none of the task's.
    """
    predictions.require(objective)
    rows, kind, tasks, task = predictions.rows, objective.settings.type, list[TaskScore](), objective.settings.name
    ranks, in_mean = predictions.ranking(objective), kind != "multilabel"
    for output, mine in enumerate(by_output(rows, len(objective.outputs))):
        if kind in ("multiclass", "ordinal"):
            mine = mine[objective.is_trained[output][rows.truth[mine].astype(np.int64)]]
        censoring = None if rows.censoring is None else rows.censoring[mine]
        metric, statistic = ranking_metric(kind, rows.truth[mine], ranks[mine], censoring)
        value = math.nan
        if len(mine) >= FEWEST_LABELS and not untrained(objective, output):
            value = of_all(statistic, len(mine))
        undefined = "" if math.isfinite(value) else "its labels are few, are all equal, or have none to learn from"
        of_task = task, kind, metric, None if undefined else value, None, None, len(mine), 0
        tasks.append(TaskScore(objective.outputs[output], *of_task, in_mean=in_mean, undefined=undefined))
    if kind == "multilabel":
        defined = [each.value for each in tasks if each.value is not None]
        mean, undefined = (float(np.mean(defined)), "") if defined else (None, "none of its columns is defined")
        tasks.append(TaskScore(task, task, kind, "mean_auroc", mean, None, None, len(rows), 0, undefined=undefined))
    return TaskScores(tuple(tasks))
