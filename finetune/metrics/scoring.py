"""Scoring: the metrics of every task of an objective on one part of a split.

In: an objective, predictions with what was measured, groups of records. Out: `TaskScores`. Kept: nothing.

Whether a task is defined follows from its labels alone, so the model and every baseline are scored on the same tasks.
Predictions that are all equal rank nothing and score what chance gives.
"""

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from finetune.labels.labels import ABOVE, BELOW, EXACT
from finetune.metrics import weighted
from finetune.metrics.predictions import LabelPredictions, OutputRows, by_output, censoring_of
from finetune.metrics.resampling import FEWEST_CLUSTERS, SHARED_TRAINING, jackknife, score_interval
from finetune.metrics.scores import FEWEST_LABELS, TaskScore, TaskScores
from finetune.metrics.weighted import Floats, Metric, of_all
from finetune.tasks.task import Task

_MEAN, _MEANS = "mean_auroc", ("ap", "positive_ratio", "mcc", "f1")
"""Name of the mean over columns, and other metrics that it has."""


def score(
    objective: Task,
    predictions: LabelPredictions,
    clusters: NDArray[np.generic] | None = None,
    *,
    calibrated: Floats | None = None,
    intervals: bool = True,
    ranks_only: bool = False,
) -> TaskScores:
    """Score predictions of one objective, task by task.

    Args:
        objective: what is predicted.
        predictions: of the labels of one part; each label once.
        clusters: (records,) cluster of relatives of every record of the table; without them each record is one, so that
            the residues of a protein are left out together.
        calibrated: the probabilities that are given out, by which classes are called; those of `predictions` without.
        intervals: whether scores have one.
        ranks_only: whether the ranking metric of each task is all that is wanted, as in a validation.

    Raises:
        ValueError: a prediction is not a finite number.
    """
    predictions.require(objective)
    rows, kind = predictions.rows, objective.settings.kind
    of_row = rows.records if clusters is None else clusters[rows.records]
    order_by, given = predictions.ranking(objective), predictions.prediction if calibrated is None else calibrated
    factor = 0.0 if not intervals else 1.0 if predictions.relative is None else SHARED_TRAINING
    censoring = censoring_of(rows)
    tasks, columns = list[TaskScore](), list[tuple[NDArray[np.int64], Metric]]()
    for output, mine in enumerate(by_output(rows, len(objective.outputs))):
        all_truth = rows.truth[mine]
        if kind.predicts_each_class:
            mine = mine[objective.is_trained[output][all_truth.astype(np.int64)]]
        own = OutputRows(objective, output, rows.truth[mine], given[mine], order_by[mine], censoring[mine])
        metric = kind.metric(own.truth, own.ranks, own.censoring)
        undefined, value = _undefined(own), np.nan
        if not undefined:
            value = of_all(metric.statistic, len(mine))
            undefined = "" if np.isfinite(value) else f"no two of the {len(mine)} labels can be compared"
        notes, values = list[str](), dict[str, float]()
        if not undefined and not ranks_only:
            notes += ["all predictions are equal"] * bool((own.ranks == own.ranks[0]).all())
            values = kind.other_metrics(own, notes)
            values.pop(metric.name, None)
        counts, untrained = _counts(own, all_truth)
        lost = sum(untrained.values())
        undefined += f", without {lost} of classes that were never trained" if undefined and lost else ""
        found = TaskScore(
            objective.outputs[output],
            objective.settings.name,
            objective.settings.type,
            metric.name,
            metric.chance,
            None if undefined else value,
            None,
            None,
            len(mine),
            0,
            values=values,
            class_counts=counts,
            untrained=untrained,
            undefined=undefined,
            notes=tuple(notes),
            in_mean=not kind.averages_columns,
        )
        if not ranks_only:
            found = _with_interval(found, metric, of_row[mine], factor, None if kind.is_number else own.truth)
        tasks.append(found)
        columns.append((mine, metric))
    if kind.averages_columns:
        mean, metric = _mean(objective, tasks, columns, len(rows))
        tasks.append(mean if ranks_only else _with_interval(mean, metric, of_row, factor, None))
    return TaskScores(tuple(tasks))


def _undefined(rows: OutputRows) -> str:
    """Why a task cannot be scored; empty where it can be."""
    objective, truth, count = rows.task, rows.truth, len(rows.truth)
    if objective.num_labels is not None and not objective.num_labels[rows.output]:
        return "training has no label of it"
    trained = objective.is_trained[rows.output]
    if trained.sum() == 1:
        return f"all of its training labels are {objective.classes[int(trained.argmax())]!r}"
    if count < FEWEST_LABELS:
        return f"{count} label{'s' if count > 1 else ''}, fewer than {FEWEST_LABELS}" if count else "no label"
    if (truth == truth[0]).all() and (rows.censoring == EXACT).all():
        only = "equal" if objective.settings.is_number else repr(_names(objective)[int(truth[0])])
        return f"all {count} labels are {only}"
    return ""


def _names(objective: Task) -> tuple[str, ...]:
    return ("no", "yes") if objective.settings.kind.is_binary else objective.classes


def _counts(rows: OutputRows, all_truth: Floats) -> tuple[dict[str, int], dict[str, int]]:
    """Labels of each class, or exact values and bounds; and those of classes that training lacked."""
    objective = rows.task
    if objective.settings.is_number:
        names = {"exact": EXACT, "<": BELOW, ">": ABOVE} if rows.censoring.any() else {}
        return {name: int((rows.censoring == code).sum()) for name, code in names.items()}, {}
    names_of = _names(objective)
    counts = np.bincount(all_truth.astype(np.int64), minlength=len(names_of)).tolist()
    found = {name: count for name, count in zip(names_of, counts, strict=True) if count}
    if not objective.settings.kind.predicts_each_class:
        return found, {}
    trained = dict(zip(names_of, objective.is_trained[rows.output].tolist(), strict=True))
    return found, {name: count for name, count in found.items() if not trained[name]}


def _with_interval(
    found: TaskScore, metric: Metric, cluster: NDArray[np.generic], factor: float, classes: Floats | None
) -> TaskScore:
    """A score with its clusters and its 95 % interval."""
    count = len(np.unique(cluster))
    if found.value is None or not factor:
        return replace(found, groups=count)
    jackknifed = jackknife(metric.statistic, cluster, metric.cells_a_row)
    low, high = score_interval(jackknifed, 2 * metric.chance - 1, cluster, classes, factor)
    if np.isfinite(low):
        return replace(found, groups=count, low=low, high=high)
    few = f"{count} cluster{'s' if count > 1 else ''} of relatives, and fewer than {FEWEST_CLUSTERS} show no spread"
    reason = few if count < FEWEST_CLUSTERS else "all other labels are equal without one of the clusters"
    return replace(found, groups=count, notes=(*found.notes, f"no 95 % interval: {reason}"))


def _mean(
    objective: Task, scores: list[TaskScore], columns: list[tuple[NDArray[np.int64], Metric]], num_rows: int
) -> tuple[TaskScore, Metric]:
    """The mean over the columns that are defined, of which all leave out a cluster together; and its metric."""
    pairs = [(task, *of) for task, of in zip(scores, columns, strict=True) if task.value is not None]
    defined, chance = [task for task, _, _ in pairs], columns[0][1].chance

    def statistic(weights: Floats) -> Floats:
        return weighted.mean_of_defined(np.stack([metric.statistic(weights[rows]) for _, rows, metric in pairs]))

    name, kind = objective.settings.name, objective.settings.type
    found = TaskScore(name, name, kind, _MEAN, chance, None, None, None, num_rows, 0)
    if not defined:
        undefined = f"none of its {len(scores)} columns is defined"
        return replace(found, undefined=undefined), Metric(_MEAN, chance, statistic)
    shown = [each for each in _MEANS if each in defined[0].values]
    found = replace(
        found,
        value=float(np.mean([task.value for task in defined if task.value is not None])),
        values={each: float(np.mean([task.values[each] for task in defined])) for each in shown},
        notes=(f"mean of {len(defined)} of {len(scores)} columns",),
    )
    return found, Metric(_MEAN, chance, statistic)
