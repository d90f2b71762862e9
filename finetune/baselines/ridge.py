"""Linear baselines: ridge regression of numbers, logistic regression of classes, on features of any kind.

In: features, labels. Out: a `TaskBaseline`. Kept: nothing.

How strongly the weights are held back is chosen on the validation part, by the same loss that is fitted; a task without
a label there takes the default. One-hot residues of variants with a ridge are hard to beat (Hsu et al. 2022,
doi:10.1038/s41587-021-01146-5); so are frozen features of a model.
"""

import time
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from finetune.baselines.baseline import PartRecords, TaskBaseline, by_labelled, constant
from finetune.baselines.features import Features
from finetune.labels.labels import Labels
from finetune.metrics.predictions import LabelPredictions, LabelRows, label_rows
from finetune.metrics.scores import NO_VALIDATION
from finetune.metrics.weighted import Floats
from finetune.tasks.task import Task
from zymogen import keyed_random

ALPHAS = (0.01, 0.1, 1.0, 10.0, 100.0, 1e3, 1e4)
"""Penalties that are tried, for features whose columns have the variance 1 or are one-hot."""
_USUAL_ALPHA = 10.0
"""Taken where the validation part has no label of a task."""
MOST_LABELS = 100_000
"""Labels of a task that are fitted, at most; of more, these are chosen by hash."""
_SEED = 0
_PREDICTED_AT_ONCE = 1 << 16

Predict = Callable[[Any], Floats]
"""Rows of the matrix -> predictions (rows, outputs), or (rows, C) of classes."""


_Fit = tuple[float, Predict]
"""A penalty, and the fit with it."""


def linear(name: str, objective: Task, labels: Labels, parts: PartRecords, features: Features) -> TaskBaseline:
    """Ridge or logistic regression of every task on the same features.

    Bounds of censored labels are taken as values. A task whose training labels are all equal, or are none, gets what
    `baseline.constant` gives.

    Args:
        name: of the baseline, such as "ridge on residues".
        objective: what is predicted, of sequences or residues.
        labels: of all records.
        parts: fitted on the first, penalty chosen on the second, predicted on the third.
        features: of all records, or of all residues where a label is of a residue.
    """
    began = time.perf_counter()
    train, valid, asked = (label_rows(labels, records) for records in parts)
    prediction = constant(objective, labels, parts).predictions.prediction.copy()
    standard = _Standardizer(features, train)
    fit = _ridges if objective.settings.is_number else _logistics
    chosen: list[float] = []
    judged = {*valid.outputs.tolist()}
    by_default = 0
    for outputs, rows in by_labelled(train, len(objective.outputs)):
        kept = rows[:, _sample(rows.shape[1])]
        matrix = standard.rows(features.rows(train)[kept[0]])
        # Outputs whose labels lie at the same places share the work of a ridge; classes are fitted one by one.
        for members in [slice(None)] if fit is _ridges else [slice(i, i + 1) for i in range(len(outputs))]:
            of, truth = outputs[members], train.truth[kept[members]].T
            if (truth == truth[0]).all():
                continue
            fits = fit(objective, matrix, truth)
            best = _best(objective, fits, standard, features, valid, of)
            chosen += [fits[number][0] for number in best]
            by_default += len({*of.tolist()} - judged)
            for number in set(best):
                mine = of[np.array(best) == number]
                _predict(fits[number][1], standard, features, asked, of, mine, prediction)
    said = _said(objective, features, chosen, by_default, train)
    return TaskBaseline(name, said, LabelPredictions(asked, prediction), time.perf_counter() - began)


def _said(objective: Task, features: Features, chosen: Sequence[float], by_default: int, train: LabelRows) -> str:
    kind = "ridge" if objective.settings.is_number else "logistic"
    penalty = f"penalty {min(chosen):g} to {max(chosen):g}" if len(set(chosen)) > 1 else ""
    penalty = penalty or (f"penalty {chosen[0]:g}" if chosen else "nothing to fit")
    if by_default < len(chosen):
        penalty += ", chosen on the validation part"
    if by_default:
        of = f" of {by_default} of {len(chosen)} tasks" if by_default < len(chosen) else ""
        penalty += f", the default{of}, as {NO_VALIDATION}"
    most = int(np.bincount(train.outputs).max()) if len(train) else 0
    sampled = f"; on {MOST_LABELS:,} of {most:,} training labels, chosen by hash" if most > MOST_LABELS else ""
    return f"{kind} regression on {features.description}; {penalty}{sampled}"


def _sample(count: int) -> NDArray[np.int64]:
    """Numbers of the labels that are fitted, rising."""
    if count <= MOST_LABELS:
        return np.arange(count)
    return np.sort(
        np.argsort(keyed_random.hashes(keyed_random.key(_SEED), np.arange(count)), kind="stable")[:MOST_LABELS]
    )


class _Standardizer:
    """Dense features with the mean 0 and variance 1 on the training labels; sparse ones as they are."""

    def __init__(self, features: Features, train: LabelRows) -> None:
        self.matrix = features.matrix
        self.is_dense = isinstance(self.matrix, np.ndarray)
        if self.is_dense:
            rows = np.unique(features.rows(train))
            rows = rows[_sample(len(rows))]
            sample = np.asarray(self.matrix[rows], np.float64)
            self.mean = sample.mean(0) if len(rows) else np.zeros(sample.shape[1])
            spread = sample.std(0) if len(rows) else np.ones(sample.shape[1])
            self.spread = np.where(spread > 1e-9 * np.maximum(1, np.abs(self.mean)), spread, np.inf)

    def rows(self, rows: NDArray[np.int64]) -> Any:
        """Rows of the matrix, float64."""
        if not self.is_dense:
            return self.matrix[rows].astype(np.float64)
        return (np.asarray(self.matrix[rows], np.float64) - self.mean) / self.spread


def _ridges(objective: Task, matrix: Any, truth: Floats) -> list[_Fit]:
    """Ridge regressions of z-scored outputs (rows, outputs), with every penalty."""
    from sklearn.linear_model import Ridge

    del objective
    mean, spread = truth.mean(0), truth.std(0)
    spread = np.where(spread > 0, spread, 1.0)
    scaled = (truth - mean) / spread
    how: dict[str, Any] = (
        {} if isinstance(matrix, np.ndarray) else {"solver": "sparse_cg", "tol": 1e-5, "max_iter": 1000}
    )

    def of(alpha: float) -> Predict:
        fitted = Ridge(alpha, **how).fit(matrix, scaled)
        return lambda rows: np.asarray(fitted.predict(rows)).reshape(rows.shape[0], -1) * spread + mean

    return [(alpha, of(alpha)) for alpha in ALPHAS]


def _logistics(objective: Task, matrix: Any, truth: Floats) -> list[_Fit]:
    """Logistic regressions of one output (rows, 1), with every penalty; classes that it lacks get the probability 0."""
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.linear_model import LogisticRegression

    index = truth[:, 0].astype(np.int64)
    is_wide = objective.settings.kind.predicts_each_class
    num_classes = len(objective.classes) if is_wide else 2
    weights: list[Any] = [None]

    def of(alpha: float) -> Predict:
        model = LogisticRegression(C=1 / alpha, max_iter=100, tol=1e-3, warm_start=True)
        if weights[0] is not None:
            model.coef_, model.intercept_ = weights[0]
        with warnings.catch_warnings():  # where it has not converged, the validation part judges it as it is
            warnings.simplefilter("ignore", ConvergenceWarning)
            model.fit(matrix, index)
        weights[0] = model.coef_.copy(), model.intercept_.copy()

        def predict(rows: Any) -> Floats:
            probabilities = np.zeros((rows.shape[0], num_classes))
            probabilities[:, model.classes_] = model.predict_proba(rows)
            return probabilities if is_wide else probabilities[:, 1:]

        return predict

    return [(alpha, of(alpha)) for alpha in sorted(ALPHAS, reverse=True)]


def _best(
    objective: Task,
    fits: list[_Fit],
    standard: _Standardizer,
    features: Features,
    valid: LabelRows,
    of: NDArray[np.int64],
) -> list[int]:
    """For each output the number of the fit with the least loss on its validation labels."""
    usual = int(np.argmin([abs(np.log(alpha / _USUAL_ALPHA)) for alpha, _ in fits]))
    mine = np.flatnonzero(np.isin(valid.outputs, of))
    mine = mine[_sample(len(mine))]
    if not len(mine):
        return [usual] * len(of)
    matrix = standard.rows(features.rows(valid)[mine])
    column, truth = np.searchsorted(of, valid.outputs[mine]), valid.truth[mine]

    def losses(predict: Predict) -> Floats:
        found = predict(matrix)
        if objective.settings.is_number:
            each = (found[np.arange(len(mine)), column] - truth) ** 2
        else:
            wide = found if found.shape[1] > 1 else np.hstack([1 - found, found])
            each = -np.log(np.clip(wide[np.arange(len(mine)), truth.astype(np.int64)], 1e-9, 1))
        return np.asarray(np.bincount(column, each, len(of)), np.float64)

    summed = np.stack([losses(predict) for _, predict in fits])
    best = np.where(np.bincount(column, minlength=len(of)) > 0, summed.argmin(0), usual)
    return [int(number) for number in best]


def _predict(
    predict: Predict,
    standard: _Standardizer,
    features: Features,
    asked: LabelRows,
    of: NDArray[np.int64],
    wanted: NDArray[np.int64],
    prediction: Floats,
) -> None:
    """Fill in the predictions of some outputs, of those that the fit is of."""
    mine = np.flatnonzero(np.isin(asked.outputs, wanted))
    places = features.rows(asked)[mine]
    for start in range(0, len(mine), _PREDICTED_AT_ONCE):
        some = mine[start : start + _PREDICTED_AT_ONCE]
        found = predict(standard.rows(places[start : start + _PREDICTED_AT_ONCE]))
        if prediction.ndim == 2:
            prediction[some] = found
        else:
            prediction[some] = found[np.arange(len(some)), np.searchsorted(of, asked.outputs[some])]
