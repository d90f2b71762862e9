"""The predictions of several models as those of one: the mean over seeds, and each fold by the model that left it out.

In: `Predictions` of the same rows from several seeds, or of other rows from several folds. Out: `Joined`. Kept:
nothing.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from finetune.metrics.predictions import Predictions, Rows
from finetune.results.calibrated import Calibration, calibrated, ends
from finetune.tasks.objective import Objective

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Joined:
    """What the members together predict of the labels of one objective."""

    predictions: Predictions
    """The mean over seeds, as the models gave it."""
    calibrated: Floats
    """The same, calibrated: for classes; of numbers the same."""
    low: Floats
    """(n,) lower end of the interval in the task's scale; NaN where there is none."""
    high: Floats
    spread: Floats | None
    """(n,) sample standard deviation over seeds, of classes that of the called class; None with one seed."""


def over_seeds(objective: Objective, of_seeds: Sequence[Predictions]) -> tuple[Predictions, Floats | None]:
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
        deviation = deviation[np.arange(len(mean)), called(objective, first.rows, mean)]
    return Predictions(first.rows, mean), deviation


def called(objective: Objective, rows: Rows, probabilities: Floats) -> NDArray[np.int64]:
    """(n,) the class that is predicted: of those that were trained, the one with the largest probability."""
    trained = objective.is_trained[rows.outputs]
    return np.asarray(np.where(trained, probabilities, -1.0).argmax(1), np.int64)


def with_calibration(
    objective: Objective, predictions: Predictions, spread: Floats | None, maps: Sequence[Calibration]
) -> Joined:
    """Predictions with what a calibration, one for each output, makes of them."""
    low, high = ends(objective, maps, predictions)
    return Joined(predictions, calibrated(objective, maps, predictions), low, high, spread)


def over_folds(of_folds: Sequence[Joined]) -> Joined:
    """The predictions of all folds, in the order of the records."""
    if len(of_folds) == 1:
        return of_folds[0]
    rows, order = _rows([each.predictions.rows for each in of_folds])
    spreads = [each.spread for each in of_folds if each.spread is not None]
    return Joined(
        Predictions(rows, np.concatenate([each.predictions.prediction for each in of_folds])[order]),
        np.concatenate([each.calibrated for each in of_folds])[order],
        np.concatenate([each.low for each in of_folds])[order],
        np.concatenate([each.high for each in of_folds])[order],
        np.concatenate(spreads)[order] if spreads else None,
    )


def joined_predictions(of_folds: Sequence[Predictions]) -> Predictions:
    """The same of predictions alone."""
    if len(of_folds) == 1:
        return of_folds[0]
    rows, order = _rows([each.rows for each in of_folds])
    return Predictions(rows, np.concatenate([each.prediction for each in of_folds])[order])


def _rows(of_folds: Sequence[Rows]) -> tuple[Rows, NDArray[np.int64]]:
    """All rows by record, place and output, and which of all they are."""
    records = np.concatenate([each.records for each in of_folds])
    outputs = np.concatenate([each.outputs for each in of_folds])
    exact = [np.zeros(len(each), np.int8) if each.censoring is None else each.censoring for each in of_folds]
    censoring = np.concatenate(exact)
    placed = [each.positions for each in of_folds if each.positions is not None]
    positions = np.concatenate(placed) if placed else None
    places = () if positions is None else tuple(positions.reshape(len(positions), -1).T[::-1])
    order = np.lexsort((outputs, *places, records))
    truth = np.concatenate([each.truth for each in of_folds])
    rows = Rows(
        records[order],
        outputs[order],
        truth[order],
        censoring[order] if censoring.any() else None,
        None if positions is None else positions[order],
    )
    return rows, order


def objective_of_folds(of_folds: Sequence[Objective]) -> Objective:
    """The objective that predictions of all folds are scored by.

    A class or a task that any of the models was not trained on is not trained here: it would be scored in part.
    """
    counts = np.min([each.class_counts for each in of_folds], axis=0)
    labels = [each.num_labels for each in of_folds if each.num_labels is not None]
    return replace(of_folds[0], class_counts=counts, num_labels=np.min(labels, axis=0) if labels else None)
