"""The predictions of several models as those of one: the mean over seeds, and each fold by the model that left it out.

In: `LabelPredictions` of the same rows from several seeds, or of other rows from several folds. Out:
`MergedPredictions`. Kept: nothing.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from finetune.metrics.predictions import LabelPredictions, concatenate
from finetune.metrics.weighted import Floats
from finetune.results.calibration import Calibration, calibrated, fit_calibration, interval_ends
from finetune.tasks.task import Task


@dataclass(frozen=True, slots=True)
class MergedPredictions:
    """What the members together predict of the labels of one objective."""

    predictions: LabelPredictions
    """The mean over seeds, as the models gave it."""
    calibrated: Floats
    """The same, calibrated: for classes; of numbers the same."""
    low: Floats
    """(n,) lower end of the interval in the task's scale; NaN where there is none."""
    high: Floats
    spread: Floats | None
    """(n,) sample standard deviation over seeds, of classes that of the called class; None with one seed."""


def average_seeds(objective: Task, of_seeds: Sequence[LabelPredictions]) -> tuple[LabelPredictions, Floats | None]:
    """The mean prediction, and its standard deviation (n,) over seeds.

    Args:
        objective: whose predictions these are.
        of_seeds: at least one, all of the same rows in one order.
    """
    first = of_seeds[0]
    if len(of_seeds) == 1:
        return first, None
    every = np.stack([each.prediction for each in of_seeds])
    mean, deviation = every.mean(0), every.std(0, ddof=1)
    if mean.ndim == 2:
        deviation = deviation[np.arange(len(mean)), objective.called(first.rows.outputs, mean)]
    return LabelPredictions(first.rows, mean), deviation


def with_calibration(
    objective: Task, predictions: LabelPredictions, spread: Floats | None, maps: Sequence[Calibration]
) -> MergedPredictions:
    """Predictions with what a calibration, one for each output, makes of them."""
    low, high = interval_ends(objective, maps, predictions)
    return MergedPredictions(predictions, calibrated(objective, maps, predictions), low, high, spread)


def merge_folds(of_folds: Sequence[MergedPredictions], objectives: Sequence[Task]) -> MergedPredictions:
    """The predictions of all folds, in the order of the records, each with the calibration that the others give it.

    The labels that calibrate a fold then neither trained nor chose the models that predicted them.

    Args:
        of_folds: predictions of one objective by the models of each fold.
        objectives: that objective with what the training labels of each fold decided.
    """
    if len(of_folds) == 1:
        return of_folds[0]
    numbers = range(len(of_folds))
    predictions = [each.predictions for each in of_folds]
    others = [[other for other in numbers if other != number] for number in numbers]
    maps = [
        fit_calibration(
            objectives[number], joined_predictions([predictions[i] for i in of], [objectives[i] for i in of])
        )
        for number, of in enumerate(others)
    ]
    of_folds = [
        with_calibration(objective, each.predictions, each.spread, of_fold)
        for objective, each, of_fold in zip(objectives, of_folds, maps, strict=True)
    ]
    order = concatenate(predictions)[1]
    spreads = [each.spread for each in of_folds if each.spread is not None]
    return MergedPredictions(
        joined_predictions(predictions, objectives),
        np.concatenate([each.calibrated for each in of_folds])[order],
        np.concatenate([each.low for each in of_folds])[order],
        np.concatenate([each.high for each in of_folds])[order],
        np.concatenate(spreads)[order] if spreads else None,
    )


def joined_predictions(of_folds: Sequence[LabelPredictions], objectives: Sequence[Task]) -> LabelPredictions:
    """The predictions of all folds alone, with what ranks those of one fold among those of the others."""
    if len(of_folds) == 1:
        return of_folds[0]
    found, order = concatenate(of_folds)
    relative = np.concatenate(
        [
            of.settings.kind.relative(of, each.rows.outputs, each.prediction)
            for of, each in zip(objectives, of_folds, strict=True)
        ]
    )
    return replace(found, relative=relative[order])


def objective_of_folds(of_folds: Sequence[Task]) -> Task:
    """The objective that predictions of all folds are scored by.

    A class or a task that any of the models was not trained on is not trained here: it would be scored in part.
    """
    counts = np.min([each.class_counts for each in of_folds], axis=0)
    labels = [each.num_labels for each in of_folds if each.num_labels is not None]
    return replace(of_folds[0], class_counts=counts, num_labels=np.min(labels, axis=0) if labels else None)
