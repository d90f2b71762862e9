"""Calibration of every output: what the validation part says of probabilities and of how far numbers are off.

In: predictions of the validation part. Out: a `Calibration` for each output; calibrated probabilities, ends of
intervals. Kept: the few numbers of each, which scores.json and a bundle hold.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from finetune.metrics.calibration import (
    conformal_half_width,
    covered,
    expected_calibration_error,
    fit_isotonic,
    fit_temperature,
    tempered,
)
from finetune.metrics.predictions import LabelPredictions, is_exact
from finetune.metrics.scores import FEWEST_LABELS
from finetune.metrics.weighted import Floats
from finetune.tasks.task import Task

COVERAGE = 0.9
"""Share of the truth that an interval promises to hold."""
ISOTONIC_FROM = 1000
"""Validation labels from which a rising map is fitted instead of a temperature, which fewer labels overfit
(Niculescu-Mizil and Caruana 2005, doi:10.1145/1102351.1102430)."""
_FEWEST_APART = 20
TOO_SHORT = "the labels that they come from also chose the checkpoint, which makes them too short"
"""Why intervals whose `Calibration` chose promise too much."""


@dataclass(frozen=True, slots=True)
class Calibration:
    """What the validation part says of one output; of the three, at most one is there."""

    labels: int = 0
    """Labels that it was fitted on."""
    half_width: float | None = None
    """Half of the interval around a number, in the task's scale."""
    temperature: float | None = None
    isotonic: tuple[tuple[float, ...], tuple[float, ...]] | None = None
    """Probabilities of yes, rising, and what each becomes."""
    why_not: str = ""
    """Why there is nothing; empty if there is."""
    chose: bool = False
    """Whether its labels also chose the checkpoint, so that it promises too much."""

    def __call__(self, probabilities: Floats) -> Floats:
        """Calibrated probabilities, of yes (n,) or of classes (n, C); as they are without a calibration."""
        if self.temperature is not None:
            return tempered(probabilities, self.temperature)
        return probabilities if self.isotonic is None else np.interp(probabilities, *self.isotonic)


def fit_calibration(
    objective: Task, validation: LabelPredictions, calibrates: NDArray[np.bool_] | None = None
) -> tuple[Calibration, ...]:
    """A calibration for each output, fitted on predictions of records that did not train.

    Args:
        objective: what is predicted.
        validation: predictions of these records.
        calibrates: (N,) whether a record did not choose the checkpoint; where an output has few labels of such records,
            all of its labels are taken. None where no record chose.
    """
    rows, found = validation.rows, []
    exact = is_exact(rows)
    for output in range(len(objective.outputs)):
        mine = (rows.outputs == output) & exact
        apart = mine if calibrates is None else mine & calibrates[rows.records]
        chose = bool(apart.sum() < min(_FEWEST_APART, mine.sum()))
        taken = mine if chose else apart
        found.append(replace(_fitted(objective, output, rows.truth[taken], validation.prediction[taken]), chose=chose))
    return tuple(found)


def _fitted(objective: Task, output: int, truth: Floats, prediction: Floats) -> Calibration:
    count, kind = len(truth), objective.settings.kind
    if kind.is_number:
        width = conformal_half_width(truth, prediction, COVERAGE)
        if np.isfinite(width):
            return Calibration(count, half_width=width)
        return Calibration(count, why_not=f"too few validation labels to promise {COVERAGE:.0%}: {count}")
    if kind.predicts_each_class:
        trained = objective.is_trained[output][truth.astype(np.int64)]
        truth, prediction = truth[trained], prediction[trained]
        count = len(truth)
    if count < FEWEST_LABELS:
        return Calibration(count, why_not=f"too few validation labels, fewer than {FEWEST_LABELS}: {count}")
    if (truth == truth[0]).all():
        return Calibration(count, why_not=f"all {count} validation labels are of one class")
    fit = _rising if prediction.ndim == 1 and count >= ISOTONIC_FROM else _tempered
    half, after = np.arange(count) % 2 == 0, prediction.copy()
    for side in (half, ~half):
        after[side] = fit(truth[~side], prediction[~side])(prediction[side])
    true = truth if prediction.ndim == 1 else truth[:, None] == np.arange(prediction.shape[1])
    if ((after - true) ** 2).mean() >= ((prediction - true) ** 2).mean():
        return Calibration(
            count, why_not="made of half of the labels, it does not improve the probabilities of the others"
        )
    return fit(truth, prediction)


def _rising(truth: Floats, prediction: Floats) -> Calibration:
    return Calibration(len(truth), isotonic=fit_isotonic(truth, prediction))


def _tempered(truth: Floats, prediction: Floats) -> Calibration:
    return Calibration(len(truth), temperature=fit_temperature(truth, prediction))


def calibrated(objective: Task, maps: Sequence[Calibration], predictions: LabelPredictions) -> Floats:
    """Calibrated probabilities, in the shape of the predictions; numbers stay as they are."""
    if objective.settings.is_number:
        return predictions.prediction
    found = predictions.prediction.copy()
    for output, of_output in enumerate(maps):
        mine = predictions.rows.outputs == output
        found[mine] = of_output(found[mine])
    return found


def interval_ends(objective: Task, maps: Sequence[Calibration], predictions: LabelPredictions) -> tuple[Floats, Floats]:
    """(n,) and (n,) ends of the intervals in the task's scale; NaN for classes and where there is no interval."""
    if not objective.settings.is_number:
        nothing = np.full(len(predictions.rows), np.nan)
        return nothing, nothing
    widths = np.array([np.nan if each.half_width is None else each.half_width for each in maps], np.float64)
    half = widths[predictions.rows.outputs]
    return predictions.prediction - half, predictions.prediction + half


def check_calibration(
    objective: Task, predictions: LabelPredictions, after: Floats, low: Floats, high: Floats
) -> list[dict[str, float]]:
    """What is left of the promise on the tested part, for each output.

    Args:
        objective: what is predicted.
        predictions: of the tested part, as the model gave them.
        after: the same, calibrated.
        low: (n,) lower ends of intervals.
        high: (n,) upper ends.

    Returns:
        For each output: `coverage` and `width` of intervals in the task's scale, or `calibration_error_before` and
        `calibration_error_after`; nothing where there is no exact label, or none with an interval.
    """
    rows, found = predictions.rows, list[dict[str, float]]()
    exact = is_exact(rows)
    for output in range(len(objective.outputs)):
        mine = (rows.outputs == output) & exact
        if objective.settings.is_number:
            mine &= np.isfinite(low)
        elif after.ndim == 2:  # a class that was never trained is in no probability
            mine[mine] = objective.is_trained[output][rows.truth[mine].astype(np.int64)]
        truth = rows.truth[mine]
        if not len(truth):
            found.append({})
        elif objective.settings.is_number:
            width = float(np.mean(high[mine] - low[mine]))
            found.append({"coverage": covered(truth, low[mine], high[mine]), "width": width})
        else:
            errors = (_error(objective, output, truth, of[mine]) for of in (predictions.prediction, after))
            found.append(dict(zip(("calibration_error_before", "calibration_error_after"), errors, strict=True)))
    return found


def _error(objective: Task, output: int, truth: Floats, probabilities: Floats) -> float:
    """The calibration error of the probability of yes, or of the class that is called."""
    if probabilities.ndim == 1:
        return expected_calibration_error(truth, probabilities)
    best = objective.called(output, probabilities)
    return expected_calibration_error(truth == best, probabilities[np.arange(len(truth)), best])
