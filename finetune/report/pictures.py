"""The pictures of tasks: what was predicted beside what was measured.

In: an objective, the predictions of its tested part. Out: `Chart`s. Kept: nothing.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from finetune.metrics.predictions import is_exact
from finetune.metrics.scores import TaskScores
from finetune.metrics.weighted import Floats
from finetune.results.merge import MergedPredictions
from finetune.tasks.task import Task
from pretrain.report.chart import Chart, ChartSeries

MOST_TASKS = 6
"""Tasks of a run that have pictures."""
_MOST_POINTS = 400
_BINS = 10
_COLOURS = ("blue", "orange", "green", "fault")
_UNIT = (-0.02, 1.02)
_RATES = ("false positive rate", "true positive rate")
_HEIGHT = 340


def pictures(objective: Task, joined: MergedPredictions, scores: TaskScores, taken: int) -> list[list[Chart]]:
    """For each task that is defined, its pictures.

    Args:
        objective: what is predicted.
        joined: of the tested part.
        scores: of the tested part; a task without a value has no picture.
        taken: how many tasks have pictures already.
    """
    found: list[list[Chart]] = []
    rows = joined.predictions.rows
    defined = {task.task for task in scores.defined if task.objective == objective.settings.name}
    for output, task in enumerate(objective.outputs):
        if task not in defined or taken + len(found) >= MOST_TASKS:
            continue
        mine = (rows.outputs == output) & is_exact(rows)
        name = f"task-{taken + len(found)}"
        truth = rows.truth[mine]
        before, after = joined.predictions.prediction[mine], joined.calibrated[mine]
        if objective.settings.is_number:
            found.append([_measured(objective, name, task, truth, before)])
        elif before.ndim == 1:
            found.append(_binary(objective, name, task, truth == 1, before, after))
        else:
            found.append(_classes(objective, output, name, task, truth.astype(np.int64), before, after))
    return found


def _measured(objective: Task, name: str, task: str, truth: Floats, prediction: Floats) -> Chart:
    shown = np.linspace(0, len(truth) - 1, min(len(truth), _MOST_POINTS)).astype(np.int64)
    x, y = truth[shown], prediction[shown]
    low, high = float(min(x.min(), y.min())), float(max(x.max(), y.max()))
    pad = 0.04 * (high - low) or abs(low) / 10 or 1.0
    both = low - pad, high + pad  # one for both axes, so that predictions that hardly vary look like it
    transform = objective.settings.transform
    unit = {"none": objective.unit, "log10": f"log10 {objective.unit}", "p": "-log10 mol/l"}[transform].strip()
    fewer = f" {len(shown):,} of {len(truth):,} labels are shown." if len(shown) < len(truth) else ""
    return Chart(
        name=name,
        title=f"{task}: predicted against measured",
        x_title=f"measured{f', {unit}' * bool(unit)}",
        y_title=f"predicted{f', {unit}' * bool(unit)}",
        ranges=(both, both),
        lines=(ChartSeries("", x, y, "blue", "points"),),
        shows_last=False,
        diagonal=True,
        height=_HEIGHT,
        note=f"The dotted line is where both are equal.{fewer}",
    )


def _binary(
    objective: Task, name: str, task: str, positive: NDArray[np.bool_], before: Floats, after: Floats
) -> list[Chart]:
    from sklearn.metrics import precision_recall_curve

    precision, recall, _ = precision_recall_curve(positive, before)
    share, roc, ends = float(positive.mean()), _roc("", positive, before, "blue"), np.array([0.0, 1.0])
    # Of equal predictions each part has its share: the curve joins the ends of blocks of them, as that of ROC.
    screened = share * roc.y + (1 - share) * roc.x
    best = ChartSeries(
        "of a perfect ranking", np.array([0.0, share, 1.0]), np.array([0.0, 1.0, 1.0]), "green", "dashed"
    )
    chance = ChartSeries("by chance", ends, np.full(2, share), "train", "dotted")
    found, ranked = ChartSeries("", recall[::-1], precision[::-1], "blue"), ChartSeries("", screened, roc.y, "blue")
    part = f"share of {objective.classes[1]!r} found"
    return [
        _square(f"{name}-roc", f"{task}: ROC", *_RATES, roc),
        _square(f"{name}-pr", f"{task}: precision and recall", "recall", "precision", found, chance, diagonal=False),
        _square(f"{name}-enrichment", f"{task}: enrichment", "share of the ranking, best first", part, ranked, best),
        _reliability(name, task, positive, before, after),
    ]


def _classes(
    objective: Task, output: int, name: str, task: str, index: NDArray[np.int64], before: Floats, after: Floats
) -> list[Chart]:
    trained = objective.is_trained[output]
    kept = trained[index]
    index, before, after = index[kept], before[kept], after[kept]
    counts = np.bincount(index, minlength=len(trained))
    frequent = [label for label in np.argsort(-counts, kind="stable")[: len(_COLOURS)].tolist() if counts[label]]
    curves = [
        _roc(objective.classes[label], index == label, before[:, label], colour)
        for label, colour in zip(frequent, _COLOURS, strict=False)
    ]
    best = np.where(trained, before, -1.0).argmax(1)
    row = np.arange(len(index))
    more = f" The {len(curves)} most frequent classes of {np.count_nonzero(counts)}." if (counts > 0).sum() > 4 else ""
    roc = _square(
        f"{name}-roc",
        f"{task}: ROC of each class against the others",
        *_RATES,
        *curves,
        note=more.strip(),
    )
    return [roc, _reliability(name, task, best == index, before[row, best], after[row, best], "predicted class right")]


def _roc(label: str, positive: NDArray[np.bool_], scores: Floats, colour: str) -> ChartSeries:
    from sklearn.metrics import roc_curve

    off, on, _ = roc_curve(positive, scores)
    return ChartSeries(label, off, on, colour)


def _reliability(
    name: str, task: str, truth: NDArray[np.bool_], before: Floats, after: Floats, what: str = "yes"
) -> Chart:
    from sklearn.calibration import calibration_curve

    curves = []
    for label, of, colour in (("as predicted", before, "orange"), ("calibrated", after, "blue")):
        true, predicted = calibration_curve(truth, np.clip(of, 0, 1), n_bins=_BINS)
        curves.append(ChartSeries(label, predicted, true, colour, marked=True))
    return _square(
        f"{name}-calibration",
        f"{task}: calibration",
        "probability",
        f"share {what}",
        *curves,
        note="On the dotted line probabilities come true as often as they say.",
    )


def _square(name: str, title: str, x_title: str, y_title: str, *lines: ChartSeries, **more: Any) -> Chart:
    style = {"ranges": (_UNIT, _UNIT), "diagonal": True, "shows_last": False, "height": _HEIGHT, **more}
    return Chart(name=name, title=title, x_title=x_title, y_title=y_title, lines=lines, **style)
