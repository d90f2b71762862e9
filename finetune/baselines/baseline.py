"""A baseline: predictions of a part by something simple, and what it is made of.

In: labels of the training part. Out: `TaskBaseline`s; the simplest of them, which knows the labels alone. Kept:
nothing.
"""

import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from finetune.labels.labels import Labels
from finetune.metrics.predictions import LabelPredictions, LabelRows, by_output, is_exact, label_rows
from finetune.metrics.weighted import Floats
from finetune.tasks.task import Task

Records = NDArray[np.int64]


class PartRecords(NamedTuple):
    """Record numbers of the parts of a split."""

    train: Records
    valid: Records
    """Chooses how strongly a fit is held back; may be empty."""
    asked: Records
    """The part that is predicted."""


@dataclass(frozen=True, slots=True)
class TaskBaseline:
    """What is shown beside the model."""

    name: str
    description: str
    """How it was made, in one sentence or two."""
    predictions: LabelPredictions
    seconds: float
    """Wall time of the fit and the prediction."""


def constant(objective: Task, labels: Labels, parts: PartRecords) -> TaskBaseline:
    """The mean of the training labels of each task, or the share of each class: what knowing nothing else gives.

    Bounds of censored labels do not enter a mean, unless there are only bounds.
    """
    began = time.perf_counter()
    train, asked = label_rows(labels, parts.train), label_rows(labels, parts.asked)
    means = _constants(objective, train)
    name, said = "prevalence", "each task: the share of each class among its training labels"
    if objective.settings.is_number:
        name, said = "mean", "each task: the mean of its training labels"
    return TaskBaseline(name, said, LabelPredictions(asked, means[asked.outputs]), time.perf_counter() - began)


def _constants(objective: Task, train: LabelRows) -> Floats:
    """(O,) or (O, C) what `constant` predicts; a task without training labels gets that of all tasks together."""
    kept = is_exact(train)
    if not kept.any():
        kept = np.ones(len(train), np.bool_)
    targets = to_predictions(objective, train.truth[kept])
    outputs = train.outputs[kept]
    flat = targets.reshape(len(targets), -1)
    pooled = flat.mean(0) if len(flat) else np.full(flat.shape[1], 1.0 / max(1, len(objective.classes)))
    sums = np.zeros((len(objective.outputs), flat.shape[1]))
    np.add.at(sums, outputs, flat)
    counts = np.bincount(outputs, minlength=len(objective.outputs))[:, None]
    means = np.where(counts > 0, sums / np.maximum(counts, 1), pooled)
    return means.reshape(len(means), *targets.shape[1:])


def to_predictions(objective: Task, truth: Floats) -> Floats:
    """(n,) numbers as they are, or (n, C) ones and zeros of classes, the means of which are probabilities."""
    if not objective.settings.kind.predicts_each_class:
        return truth
    return np.asarray(truth[:, None] == np.arange(len(objective.classes)), np.float64)


def by_labelled(rows: LabelRows, num_outputs: int) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int64]]]:
    """Outputs that have labels of the same places, with those labels: fits that can share their work.

    Yields:
        (outputs of a group, (outputs, places) numbers of their rows, in one order of places for all of them).
    """
    places = rows.records if rows.positions is None else np.column_stack([rows.records, rows.positions])
    groups: dict[bytes, list[tuple[int, NDArray[np.int64]]]] = {}
    for output, mine in enumerate(by_output(rows, num_outputs)):
        if len(mine):
            groups.setdefault(places[mine].tobytes(), []).append((output, mine))
    for members in groups.values():
        yield np.array([output for output, _ in members]), np.stack([mine for _, mine in members])
