"""predictions.csv: what was predicted of every label of validation and test, beside what was measured.

In: `MergedPredictions` predictions of each objective. Out: the file. Kept: the file.
"""

from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from finetune.labels.labels import BELOW, EXACT
from finetune.results.merge import MergedPredictions
from finetune.tasks.task import Task
from zymogen.files.durable import write_csv

FILE = "predictions.csv"
COLUMNS = ("id", "part", "task", "position", "truth", "prediction", "low", "high", "probability", "std", "ranking")
"""`position` is that of a residue, from 1, or of a pair, as 3-17. Numbers are in the unit of the table. `low` and
`high` are the ends of the interval that holds 90 % of the truth on data like the validation part. `probability` is that
of yes, or of the class that is predicted, calibrated. `std` is the standard deviation over seeds, in the scale that is
learned, or of the probability. `ranking` is the number by which ranking metrics order the rows: the prediction in the
scale that is learned, rising with `truth`; the probability of yes before calibration; the expected class of an order;
of other classes one number for each, in their order. With folds it is relative to the training labels of each fold. A
cell is empty where there is no such number."""


def write(
    path: Path, parts: Sequence[tuple[str, Sequence[Task], Sequence[MergedPredictions]]], name_of: Callable[[int], str]
) -> None:
    """Write the predictions of all parts.

    Args:
        path: the file, which is replaced.
        parts: name of each part, its objectives, and what was predicted of each.
        name_of: id of a record.
    """
    lines = (
        line
        for part, objectives, of_objectives in parts
        for objective, joined in zip(objectives, of_objectives, strict=True)
        for line in _rows(part, objective, joined, name_of)
    )
    write_csv(path, chain([COLUMNS], lines), "get the right to write there")


def _rows(
    part: str, objective: Task, joined: MergedPredictions, name_of: Callable[[int], str]
) -> Iterator[tuple[str, ...]]:
    rows = joined.predictions.rows
    columns = (_numbers if objective.settings.is_number else _classes)(objective, joined)
    positions = _positions(rows.positions, len(rows))
    spread = [""] * len(rows) if joined.spread is None else _texts(joined.spread)
    ranking = joined.predictions.ranking(objective) * (-1 if objective.scale.turns_bounds else 1)
    of_rows = rows.records.tolist(), rows.outputs.tolist(), positions, zip(*columns, strict=True), spread
    ranking = ranking if ranking.ndim == 2 else ranking[:, None]
    for record, output, position, each, std, ranks in zip(*of_rows, ranking, strict=True):
        shown = " ".join(f"{rank:.12g}" for rank in ranks.tolist())  # more digits than a float32 has
        yield name_of(record), part, objective.outputs[output], position, *each, std, shown


def _numbers(objective: Task, joined: MergedPredictions) -> tuple[list[str], ...]:
    """truth, prediction, low, high, probability of numbers."""
    rows, scale = joined.predictions.rows, objective.scale
    with np.errstate(over="ignore"):
        truth, prediction = scale.undone(rows.truth), scale.undone(joined.predictions.prediction)
        ends = np.stack([scale.undone(joined.low), scale.undone(joined.high)])
    truths = _texts(truth)
    if rows.censoring is not None:
        for number in np.flatnonzero(rows.censoring != EXACT).tolist():
            is_below = (rows.censoring[number] == BELOW) != scale.turns_bounds
            truths[number] = ("<" if is_below else ">") + truths[number]
    nothing = [""] * len(rows)
    return truths, _texts(prediction), _texts(ends.min(0)), _texts(ends.max(0)), nothing


def _classes(objective: Task, joined: MergedPredictions) -> tuple[list[str], ...]:
    """truth, prediction, low, high, probability of classes."""
    rows, names, probabilities = joined.predictions.rows, objective.classes, joined.calibrated
    index = objective.called(rows.outputs, probabilities)
    shown = probabilities if probabilities.ndim == 1 else probabilities[np.arange(len(index)), index]
    nothing = [""] * len(rows)
    truths = [names[number] for number in rows.truth.astype(np.int64).tolist()]
    return truths, [names[number] for number in index.tolist()], nothing, nothing, _texts(shown)


def _positions(positions: NDArray[np.int64] | None, count: int) -> list[str]:
    if positions is None:
        return [""] * count
    each = (positions.reshape(count, -1) + 1).tolist()
    return ["-".join(map(str, places)) for places in each]


def _texts(values: NDArray[np.float64]) -> list[str]:
    """Numbers with seven digits, empty for what is not finite."""
    return [f"{value:.7g}" if np.isfinite(value) else "" for value in values.tolist()]
