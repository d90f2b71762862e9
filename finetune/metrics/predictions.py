"""Predictions beside what was measured: the table that every metric and every baseline speaks.

In: labels of some records, and what a model says of each. Out: `LabelPredictions`, checked. Kept: nothing.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from finetune.labels.labels import EXACT, Labels, ranges
from finetune.metrics.weighted import Floats
from finetune.tasks.task import Task


@dataclass(frozen=True, slots=True)
class LabelRows:
    """The labels of some records, one row each: what a prediction is asked for, and compared with."""

    records: NDArray[np.int64]
    """(n,) record of each label."""
    outputs: NDArray[np.int64]
    """(n,) output of the objective that it is of."""
    truth: NDArray[np.float64]
    """(n,) in the task's scale; of classes, the index of the class."""
    censoring: NDArray[np.int8] | None = None
    """(n,) of `finetune.labels.labels`; None where every label is exact."""
    positions: NDArray[np.int64] | None = None
    """(n,) or (n, 2): residues of the record; None for labels of whole sequences."""

    def __len__(self) -> int:
        return len(self.records)


@dataclass(frozen=True, slots=True)
class LabelPredictions:
    """Rows, and a prediction of each."""

    rows: LabelRows
    prediction: NDArray[np.float64]
    """(n,) numbers in the task's scale, or probabilities of yes; or (n, classes) probabilities."""
    relative: NDArray[np.float64] | None = None
    """What ranks the rows where models of several folds predicted them, relative to the training labels of each: (n,)
    numbers, or (n, classes). None where one model, or the mean of several, predicted all."""

    def ranking(self, objective: Task) -> NDArray[np.float64]:
        """(n,) or (n, classes) numbers by which ranking metrics order the rows."""
        if self.relative is not None:
            return self.relative
        return objective.settings.kind.ranking(self.prediction)

    def require(self, objective: Task) -> None:
        """Check that each prediction is a number.

        Raises:
            ValueError: which record and task, what was got, what to do.
        """
        sums = self.prediction if self.prediction.ndim == 1 else self.prediction.sum(1)
        wrong = np.flatnonzero(~np.isfinite(sums))
        if len(wrong):
            first = wrong[0]
            of = f"task {objective.outputs[self.rows.outputs[first]]!r}, record {self.rows.records[first]}"
            more = f", and {len(wrong) - 1:,} others are like it" if len(wrong) > 1 else ""
            raise ValueError(
                f"{of}: the prediction is {sums[first]:g}{more}; a finite number is needed; where the loss is none "
                "either, training diverged: lower schedule.peak_lr"
            )


class OutputRows(NamedTuple):
    """The rows of one output of a task that metrics are made of."""

    task: Task
    output: int
    truth: Floats
    """(n,) as in `LabelRows`."""
    prediction: Floats
    """(n,) or (n, C) as in `LabelPredictions`, calibrated."""
    ranks: Floats
    """(n,) or (n, C), as of `LabelPredictions.ranking`."""
    censoring: NDArray[np.int8]
    """(n,) which numbers are bounds."""


def concatenate(parts: Sequence[LabelPredictions]) -> tuple[LabelPredictions, NDArray[np.int64]]:
    """All predictions of one objective by record, place and output, and which of all parts' rows they are."""
    of = [each.rows for each in parts]
    records = np.concatenate([each.records for each in of])
    outputs = np.concatenate([each.outputs for each in of])
    censoring = np.concatenate([censoring_of(each) for each in of])
    placed = [each.positions for each in of if each.positions is not None]
    positions = np.concatenate(placed) if placed else None
    places = () if positions is None else tuple(np.atleast_2d(positions.T)[::-1])
    order = np.lexsort((outputs, *places, records))
    rows = LabelRows(
        records[order],
        outputs[order],
        np.concatenate([each.truth for each in of])[order],
        censoring[order] if censoring.any() else None,
        None if positions is None else positions[order],
    )
    return LabelPredictions(rows, np.concatenate([each.prediction for each in parts])[order]), order


def label_rows(labels: Labels, records: NDArray[np.int64]) -> LabelRows:
    """The labels of `records`, in their order.

    Args:
        labels: of one objective.
        records: numbers of records; one without labels has no row.
    """
    of, places = ranges(labels.pointers[records], labels.pointers[records + 1])
    return LabelRows(
        records[of].astype(np.int64),
        labels.outputs[places].astype(np.int64),
        labels.values[places].astype(np.float64),
        None if labels.censoring is None else labels.censoring[places],
        None if labels.positions is None else labels.positions[places].astype(np.int64),
    )


def by_output(rows: LabelRows, count: int) -> list[NDArray[np.int64]]:
    """Numbers of the rows of each of `count` outputs, rising."""
    order = np.argsort(rows.outputs, kind="stable")
    return np.split(order, np.searchsorted(rows.outputs[order], np.arange(1, count)))


def censoring_of(rows: LabelRows) -> NDArray[np.int8]:
    """(n,) which labels are bounds."""
    return np.full(len(rows), EXACT, np.int8) if rows.censoring is None else rows.censoring


def is_exact(rows: LabelRows) -> NDArray[np.bool_]:
    """(n,) whether a label is a number rather than a bound."""
    return np.asarray(censoring_of(rows) == EXACT, np.bool_)
