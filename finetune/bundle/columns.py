"""Columns of predictions: from the numbers of one or several models to the cells of a table.

In: what each model gives a row, and the calibration of the bundle. Out: names of columns, and a cell of text for each.
Kept: nothing. Numbers are in the user's unit; a cell of a residue task is a JSON list with an entry for each residue of
the row's protein, null where it has no prediction.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from finetune.metrics.weighted import Floats
from finetune.results.calibration import Calibration
from finetune.tasks.task import Task


@dataclass(frozen=True, slots=True)
class TaskColumns:
    """The columns of one task."""

    objective: Task
    output: int
    calibration: Calibration
    members: int
    """How many models there are."""
    name: str
    """Name of its first column, with which the names of the others begin."""

    @property
    def is_trained(self) -> bool:
        """Whether the task had a training label; without one it has no columns."""
        counts = self.objective.num_labels
        return counts is None or bool(counts[self.output] > 0)

    @property
    def names(self) -> list[str]:
        """Names of the columns."""
        objective = self.objective
        more = ["_low", "_high"] if self.calibration.half_width is not None else []
        if not objective.settings.is_number:
            classes = objective.classes[0 if objective.settings.kind.predicts_each_class else 1 :]
            more = [f"_p_{name}" for name in classes]
        return [self.name, *(self.name + each for each in more), *([f"{self.name}_std"] if self.members > 1 else [])]

    def values(self, of_members: Sequence[Floats]) -> list[list[float | str]]:
        """The columns of places: rows, or residues of one row.

        Args:
            of_members: for each model ``(places, outputs)`` or ``(places, outputs, classes)``.

        Raises:
            FloatingPointError: a prediction is not a number.
        """
        stacked = np.stack([each[:, self.output] for each in of_members])
        if not np.isfinite(stacked).all():
            raise FloatingPointError
        mean, found = stacked.mean(0), list[Floats]()
        if self.objective.settings.is_number:
            scale, half = self.objective.scale, self.calibration.half_width
            found.append(scale.undone(mean))
            if half is not None:
                found += [*np.sort([scale.undone(mean - half), scale.undone(mean + half)], axis=0)]
            if self.members > 1:
                found.append(scale.undone(stacked).std(0, ddof=1))
            return [[*each.tolist()] for each in found]
        if mean.ndim == 2:
            chosen = self.objective.called(self.output, mean)
            of_chosen = stacked[:, np.arange(len(mean)), chosen]
            probabilities = [*self.calibration(mean).T] if len(mean) else [mean[:, 0]] * mean.shape[1]
        else:
            calibrated = self.calibration(mean)
            chosen, of_chosen, probabilities = (calibrated >= 0.5).astype(np.int64), stacked, [calibrated]
        if self.members > 1:
            probabilities.append(of_chosen.std(0, ddof=1))
        names: list[float | str] = [self.objective.classes[index] for index in chosen.tolist()]
        return [names, *([*each.tolist()] for each in probabilities)]


def task_columns(
    objectives: Sequence[Task],
    of_tasks: Mapping[tuple[str, str], Calibration],
    members: int,
    taken: Sequence[str],
) -> list[tuple[int, TaskColumns]]:
    """(number of its objective, columns) of every task that is predicted; pairs of residues are not.

    Args:
        objectives: of the models.
        of_tasks: calibrations.
        members: how many models there are.
        taken: names of the table's own columns. A task with a column of such a name gets names that begin with
            ``NAME_predicted``.
    """
    found: list[tuple[int, TaskColumns]] = []
    names = {*taken}
    for number, objective in enumerate(objectives):
        if objective.settings.level == "pair":
            continue
        for output, name in enumerate(objective.outputs):
            known = of_tasks.get((objective.settings.name, name), Calibration())
            columns = TaskColumns(objective, output, known, members, name)
            while names & {*columns.names}:
                columns = TaskColumns(objective, output, known, members, f"{columns.name}_predicted")
            if columns.is_trained:
                names |= {*columns.names}
                found.append((number, columns))
    return found


def cell(value: float | str | Sequence[float | str | None] | None) -> str:
    """The text of one number, with 7 digits, of one class, or of a list of them; empty without a value."""
    if value is None or isinstance(value, str):
        return value or ""
    if isinstance(value, float):
        return f"{value:.7g}"
    return json.dumps([float(f"{each:.7g}") if isinstance(each, float) else each for each in value])
