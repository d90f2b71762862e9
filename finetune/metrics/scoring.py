"""Scoring: the metrics of every task of an objective on one part of a split.

In: an objective, predictions with what was measured, groups of records. Out: `TaskScores`. Kept: nothing.

Whether a task is defined follows from its labels alone, so the model and every baseline are scored on the same tasks.
Predictions that are all equal rank nothing and score what chance gives.
"""

import warnings
from collections.abc import Callable
from functools import partial

import numpy as np
from numpy.typing import NDArray

from finetune.labels.labels import ABOVE, BELOW, EXACT
from finetune.metrics import weighted
from finetune.metrics.calibration import expected_calibration_error
from finetune.metrics.enrichment import bedroc, enrichment, random_bedroc, top_gain, top_recall
from finetune.metrics.predictions import LabelPredictions, by_output, is_exact
from finetune.metrics.resampling import FEWEST_CLUSTERS, SHARED_TRAINING, jackknife, score_interval
from finetune.metrics.scores import CHANCE, TaskScore, TaskScores
from finetune.metrics.weighted import Floats, Statistic, of_all, ranking_metric
from finetune.tasks.task import Scale, Task

FEWEST_LABELS = 10
"""A task with fewer labels in a part is not scored there."""


def score(
    objective: Task,
    predictions: LabelPredictions,
    clusters: NDArray[np.generic] | None = None,
    *,
    calibrated: Floats | None = None,
    intervals: bool = True,
) -> TaskScores:
    """Score predictions of one objective, task by task.

    Args:
        objective: what is predicted.
        predictions: of the labels of one part; each label once.
        clusters: (records,) cluster of relatives of every record of the table; without them each record is one, so that
            the residues of a protein are left out together.
        calibrated: the probabilities that are given out, by which classes are called; those of `predictions` without.
        intervals: whether scores have one.

    Raises:
        ValueError: a prediction is not a finite number or not a probability, or a label is none of the task's.
    """
    predictions.require(objective)
    rows = predictions.rows
    of_row = rows.records if clusters is None else clusters[rows.records]
    order_by, given = predictions.ranking(objective), predictions.prediction if calibrated is None else calibrated
    factor = 0.0 if not intervals else 1.0 if predictions.relative is None else SHARED_TRAINING
    exact = is_exact(rows)
    censoring = np.zeros(len(rows), np.int8) if rows.censoring is None else rows.censoring
    kind = objective.settings.type
    tasks, curves = [], []
    for output, mine in enumerate(by_output(rows, len(objective.outputs))):
        truth, prediction, ranks, cluster = rows.truth[mine], given[mine], order_by[mine], of_row[mine]
        made = partial(_made, objective, objective.outputs[output], cluster, factor)
        reason = untrained(objective, output) or _too_few(len(truth))
        if kind == "regression":
            scale = objective.scale if objective.scale.is_logarithm else None
            active_from = objective.settings.active_from
            known = censoring[mine], exact[mine]
            tasks.append(_regression(made, reason, truth, prediction, ranks, *known, scale, active_from))
        elif kind in ("binary", "multilabel"):
            tasks.append(_binary(made, reason, truth, prediction, ranks, in_mean=kind == "binary"))
            if kind == "multilabel" and not tasks[-1].undefined:
                curves.append((mine, ranking_metric(kind, truth, ranks)[1]))
        else:
            tasks.append(_classes(objective, output, made, reason, truth, prediction, ranks))
    if kind == "multilabel":
        tasks.append(_mean(objective, tasks, curves, of_row, factor))
    return TaskScores(tuple(tasks))


def enrichment_metrics(active: NDArray[np.bool_], scores: Floats) -> dict[str, float]:
    """AUROC, AP, BEDROC and enrichment at 1 %, each with what it depends on or what chance gives.

    Args:
        active: whether each item is positive; some, and not all.
        scores: finite, the higher the more likely positive.
    """
    from sklearn.metrics import average_precision_score, roc_auc_score

    ratio = float(active.mean())
    factor, most, items = enrichment(active, scores, 0.01)
    return {
        "auroc": float(roc_auc_score(active, scores)),
        "ap": float(average_precision_score(active, scores)),
        "positive_ratio": ratio,  # what AP is by chance
        "bedroc": bedroc(active, scores),
        "bedroc_random": random_bedroc(ratio),
        "ef1": factor,
        "ef1_most": most,
        "ef1_items": float(items),
    }


Made = Callable[..., TaskScore]


def _made(
    objective: Task,
    name: str,
    cluster: NDArray[np.generic],
    factor: float,
    metric: str,
    value: float | None,
    statistic: Statistic | None = None,
    *,
    kept: NDArray[np.bool_] | None = None,
    classes: Floats | None = None,
    cells_a_row: int = 1,
    notes: tuple[str, ...] = (),
    **fields: object,
) -> TaskScore:
    """A score with its interval; `kept` are the rows that the statistic is made of, all without it."""
    cluster = cluster if kept is None else cluster[kept]
    count = len(np.unique(cluster))
    ends: tuple[float | None, float | None] = None, None
    if statistic is not None and factor:
        found = jackknife(statistic, cluster, cells_a_row)
        low, high = score_interval(found, 2 * CHANCE[metric] - 1, cluster, classes, factor)
        few = f"{count} cluster{'s' if count > 1 else ''} of relatives, and fewer than {FEWEST_CLUSTERS} show no spread"
        reason = few if count < FEWEST_CLUSTERS else "all other labels are equal without one of the clusters"
        ends, notes = ((low, high), notes) if np.isfinite(low) else (ends, (*notes, f"no 95 % interval: {reason}"))
    fields = {"labels": len(cluster), "groups": count, "notes": notes, **fields}
    settings = objective.settings
    return TaskScore(name, settings.name, settings.type, metric, value, *ends, **fields)  # type: ignore[arg-type]


def untrained(objective: Task, output: int) -> str:
    """Why training could not teach a task; empty where it could."""
    if objective.num_labels is not None and not objective.num_labels[output]:
        return "training has no label of it"
    trained = objective.is_trained[output]
    if trained.sum() == 1:
        return f"all of its training labels are {objective.classes[int(trained.argmax())]!r}"
    return ""


def _too_few(count: int) -> str:
    if not count:
        return "no label"
    return f"{count} label{'s' if count > 1 else ''}, fewer than {FEWEST_LABELS}" if count < FEWEST_LABELS else ""


def _constant(prediction: Floats) -> tuple[str, ...]:
    return ("all predictions are equal",) if (prediction == prediction[0]).all() else ()


def _regression(
    made: Made,
    undefined: str,
    truth: Floats,
    prediction: Floats,
    ranks: Floats,
    censoring: NDArray[np.int8],
    exact: NDArray[np.bool_],
    scale: Scale | None,
    active_from: float | None,
) -> TaskScore:
    metric, statistic = ranking_metric("regression", truth, ranks, censoring)
    censored = metric == "concordance"
    names = {"exact": EXACT, "<": BELOW, ">": ABOVE}
    counts = {name: int((censoring == code).sum()) for name, code in names.items()} if censored else {}
    if not undefined and not censored and (truth == truth[0]).all():
        undefined = f"all {len(truth)} labels are equal"
    value, pairs = 0.0, 0
    if not undefined and censored:
        value, pairs = weighted.concordance(truth, censoring, ranks)
        undefined = "" if pairs else f"no two of the {len(truth)} labels can be compared"
    if undefined:
        return made(metric, None, class_counts=counts, undefined=undefined)
    values = _of_numbers(truth[exact], prediction[exact], ranks[exact], scale)
    notes = _constant(ranks)
    if censored:
        values["comparable_pairs"] = float(pairs)
    else:
        value = values["spearman"]
    if active_from is not None:
        # `>7` is active above a threshold of 6, and `<5` is not; `<7` may be either.
        active = (truth >= active_from) & (censoring != BELOW)
        known = (censoring == EXACT) | active | ((censoring == BELOW) & (truth <= active_from))
        if unclear := int((~known).sum()):
            notes += (f"{unclear} bounds do not show whether the value is at least {active_from:g}: not in AUROC",)
        if 0 < active.sum() < known.sum():
            values |= enrichment_metrics(active[known], ranks[known])
        else:
            none = "every" if active.any() else "no"
            notes += (f"{none} label is at least {active_from:g}: no AUROC, AP, BEDROC or enrichment",)
    values.pop(metric, None)
    cells = len(truth) if censored else 1
    return made(metric, value, statistic, cells_a_row=cells, values=values, class_counts=counts, notes=notes)


def _of_numbers(truth: Floats, prediction: Floats, ranks: Floats, scale: Scale | None) -> dict[str, float]:
    """Metrics of exact values; those of the order alone where there are enough that vary."""
    from scipy import stats

    if not len(truth):
        return {}
    values = {"rmse": float(np.sqrt(np.mean((prediction - truth) ** 2)))}
    if scale is not None:
        with np.errstate(over="ignore", invalid="ignore"):
            error = float(np.sqrt(np.mean((scale.undone(prediction) - scale.undone(truth)) ** 2)))
        if np.isfinite(error):
            values["rmse_unit"] = error
    if len(truth) < FEWEST_LABELS or (truth == truth[0]).all():
        return values
    varies = bool((prediction != prediction[0]).any())
    values["spearman"] = of_all(weighted.spearman(truth, ranks), len(truth))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", stats.NearConstantInputWarning)
        pearson = float(stats.pearsonr(truth, prediction).statistic) if varies else 0.0
    values["pearson"] = pearson if np.isfinite(pearson) else 0.0
    values["ndcg_10"] = top_gain(truth, ranks)
    values["top_10_recall"] = top_recall(truth, ranks)
    return values


def _binary(
    made: Made, undefined: str, truth: Floats, prediction: Floats, ranks: Floats, *, in_mean: bool
) -> TaskScore:
    from sklearn.metrics import f1_score, matthews_corrcoef

    counts = {"no": int((truth == 0).sum()), "yes": int((truth == 1).sum())}
    if not undefined and not all(counts.values()):
        undefined = f"all {len(truth)} labels are {'yes' if counts['yes'] else 'no'}"
    if undefined:
        return made("auroc", None, class_counts=counts, undefined=undefined, in_mean=in_mean)
    positive, called = truth == 1, prediction >= 0.5
    values = enrichment_metrics(positive, ranks)
    del values["auroc"]
    values["mcc"] = float(matthews_corrcoef(positive, called))
    values["f1"] = float(f1_score(positive, called, zero_division=0.0))
    values["calibration_error"] = expected_calibration_error(truth, prediction)
    metric, statistic = ranking_metric("binary", truth, ranks)
    fields = {"class_counts": counts, "notes": _constant(ranks), "values": values, "in_mean": in_mean}
    return made(metric, of_all(statistic, len(truth)), statistic, classes=truth, **fields)


def _classes(
    objective: Task, output: int, made: Made, undefined: str, truth: Floats, prediction: Floats, ranks: Floats
) -> TaskScore:
    from sklearn.metrics import cohen_kappa_score, f1_score, matthews_corrcoef

    ordinal = objective.settings.type == "ordinal"
    metric = "kendall" if ordinal else "macro_auroc"
    trained = objective.is_trained[output]
    index = truth.astype(np.int64)
    counts = np.bincount(index, minlength=len(trained))
    by_name = [(name, int(count)) for name, count in zip(objective.classes, counts, strict=True)]
    untrained = {name: n for (name, n), known in zip(by_name, trained, strict=True) if n and not known}
    kept = trained[index]
    index, prediction, ranks = index[kept], prediction[kept], ranks[kept]
    present = np.unique(index)
    undefined = undefined or _too_few(len(index))
    if not undefined and len(present) < 2:
        undefined = f"all {len(index)} labels are {objective.classes[present[0]]!r}"
    fields: dict[str, object] = {"class_counts": {name: n for name, n in by_name if n}, "untrained": untrained}
    if undefined:
        if untrained:
            undefined += f", without {sum(untrained.values())} of classes that were never trained"
        return made(metric, None, kept=kept, undefined=undefined, **fields)
    called = np.where(trained, prediction, -1.0).argmax(1)
    values = {
        "mcc": float(matthews_corrcoef(index, called)),
        "macro_f1": float(f1_score(index, called, labels=present, average="macro", zero_division=0.0)),
        "accuracy": float((index == called).mean()),
        "majority": float(np.bincount(index).max() / len(index)),
        "calibration_error": expected_calibration_error(index == called, prediction[np.arange(len(index)), called]),
    }
    fields |= {"cells_a_row": len(present), "values": values, "notes": _constant(ranks), "kept": kept}
    classes = index.astype(np.float64)
    if ordinal:
        kappa = cohen_kappa_score(index, called, weights="quadratic", labels=np.arange(len(trained)))
        values["quadratic_kappa"] = float(kappa)
    metric, statistic = ranking_metric(objective.settings.type, classes, ranks)
    return made(metric, of_all(statistic, len(index)), statistic, classes=classes, **fields)


def _mean(
    objective: Task,
    columns: list[TaskScore],
    curves: list[tuple[NDArray[np.int64], Statistic]],
    of_row: NDArray[np.generic],
    factor: float,
) -> TaskScore:
    """The mean AUROC over the columns that are defined, of which all leave out a cluster together."""
    defined = [task for task in columns if task.value is not None]
    made = partial(_made, objective, objective.settings.name, of_row, factor)
    if not defined:
        return made("mean_auroc", None, undefined=f"none of its {len(columns)} columns is defined")

    def statistic(weights: Floats) -> Floats:
        return weighted.mean_of_defined(np.stack([one(weights[rows]) for rows, one in curves]))

    notes = (f"mean of {len(defined)} of {len(columns)} columns",)
    names = "ap", "positive_ratio", "mcc", "f1"
    values = {name: float(np.mean([task.values[name] for task in defined])) for name in names}
    value = float(np.mean([task.value for task in defined if task.value is not None]))
    return made("mean_auroc", value, statistic, values=values, notes=notes)
