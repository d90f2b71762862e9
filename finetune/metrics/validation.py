"""Scores of a validation, as the loop reads them.

In: predictions of each objective, mean losses. Out: numbers for metrics.jsonl, a line, the number that chooses a
checkpoint. Kept: nothing.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from finetune.metrics import concordance, ranking
from finetune.metrics.predictions import Predictions, is_exact
from finetune.metrics.scores import Scores, TaskScore
from finetune.metrics.scoring import FEWEST_LABELS
from finetune.tasks.objective import Objective


@dataclass(frozen=True, slots=True)
class FineTuneScores:
    """What a model is worth on one part of the split (a `pretrain.job.Scores`)."""

    tasks: Scores
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


def ranked(objective: Objective, predictions: Predictions) -> Scores:
    """The ranking metric of each task alone, the same to the last bit as that of `finetune.metrics.scoring.score`.

    Binary columns and numbers take a few sorts together, however many there are; only columns with bounds or with
    grades are taken one by one.

    Raises:
        ValueError: a prediction is not a finite number or not a probability, or a label is none of the task's.
    """
    predictions.require(objective)
    rows, kind, count = predictions.rows, objective.settings.type, len(objective.outputs)
    outputs, truth, prediction = rows.outputs, rows.truth, predictions.prediction
    is_defined = np.bincount(outputs, minlength=count) >= FEWEST_LABELS
    is_defined &= (objective.num_labels is None or objective.num_labels > 0) & (objective.is_trained.sum(1) != 1)
    if prediction.ndim == 2:
        kept = objective.is_trained[outputs, truth.astype(np.int64)]
        outputs, truth, prediction = outputs[kept], truth[kept], prediction[kept]
    labels = np.bincount(outputs, minlength=count)
    is_defined &= labels >= FEWEST_LABELS
    metrics = [{"regression": "spearman", "multiclass": "macro_auroc", "ordinal": "kendall"}.get(kind, "auroc")] * count
    if kind == "regression":
        values = ranking.spearman(outputs, truth, prediction, count)
        for output in np.unique(outputs[~is_exact(rows)]).tolist():
            mine = outputs == output
            metrics[output] = "concordance"
            bounds = np.zeros(0, np.int8) if rows.censoring is None else rows.censoring[mine]
            values[output], _ = concordance.concordance(truth[mine], bounds, prediction[mine])
    elif kind == "multiclass":
        values = ranking.macro_auroc(outputs, truth.astype(np.int64), prediction, count)
    elif kind == "ordinal":
        values, expected = np.full(count, np.nan), ranking.expected_class(prediction)
        for output in np.flatnonzero(is_defined).tolist():
            values[output] = ranking.kendall(truth[outputs == output], expected[outputs == output])
    else:
        values = ranking.auroc(outputs, truth == 1, prediction, count)
    is_defined &= np.isfinite(values)
    in_mean, settings = kind != "multilabel", objective.settings
    tasks = [
        TaskScore(
            name, settings.name, kind, metric, value if has_one else None, None, None, number, 0, in_mean=in_mean,
            undefined="" if has_one else "its labels are few, are all equal, or have none to learn from",
        )
        for name, metric, value, has_one, number in zip(
            objective.outputs, metrics, values.tolist(), is_defined.tolist(), labels.tolist(), strict=True
        )
    ]  # fmt: skip
    if kind == "multilabel":
        mean = float(np.mean(values[is_defined])) if is_defined.any() else None
        of_columns = settings.name, settings.name, kind, "mean_auroc", mean, None, None, len(rows), 0
        tasks.append(TaskScore(*of_columns, undefined="" if is_defined.any() else "none of its columns is defined"))
    return Scores(tuple(tasks))
