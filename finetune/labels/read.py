"""The labels of a task from a table of text.

In: a table, the record of each row, the settings of a task. Out: `TaskLabels`. Kept: nothing.
"""

from dataclasses import dataclass

import numpy as np

from finetune.labels.conditions import outputs_by_condition, outputs_by_label
from finetune.labels.labels import Labels
from finetune.labels.locate import ColumnCells, TableRows, locate_labels
from finetune.labels.replicates import Replicates, merge_replicates
from finetune.tasks.cells import written
from finetune.tasks.classes import minus_is_negative
from finetune.tasks.columns import columns_of, outputs_of
from finetune.tasks.settings import TaskSettings


@dataclass(frozen=True, slots=True)
class TaskReadFacts:
    """What reading an objective found besides its labels."""

    settings: TaskSettings
    outputs: tuple[str, ...]
    """Names of its O tasks."""
    classes: tuple[str, ...]
    """Names of the C classes; empty for numbers."""
    unit: str
    """Unit of the user's numbers; empty where none is known."""
    said: tuple[str, ...]
    """What was decided, for the user: which of two classes is positive, which numbers were converted."""


@dataclass(frozen=True, slots=True)
class TaskLabels(TaskReadFacts):
    """The labels of one objective, over all records."""

    labels: Labels


def read_task(rows: TableRows, settings: TaskSettings, decimal: str = "auto") -> TaskLabels:
    """The labels of a task.

    Args:
        rows: of the table.
        settings: of the task.
        decimal: the decimal sign of numbers, "." or ","; "auto" decides for each column.

    Raises:
        ValueError: a column is not there; a label cannot be read, has no logarithm, or does not fit its sequence;
            replicates cannot become one label. The message names file, row, column and what to change.
    """
    columns = columns_of(settings, rows.table.columns, rows.table.name)
    outputs = outputs_of(settings, columns)
    cells_of = [written(rows.table, name) for name in columns]
    found = [
        ColumnCells(rows, name, number if len(outputs) > 1 else 0, cells.of_cells(rows.records[cells.rows] >= 0))
        for number, (name, cells) in enumerate(zip(columns, cells_of, strict=True))
    ]
    if settings.columns_are == "lists":
        outputs, found = outputs_by_label(found, settings)
    missing = set(settings.missing) - set(settings.classes)
    if settings.level == "sequence" and minus_is_negative(settings, {t for each in found for t in each.cells.texts}):
        missing.discard("-")
    each_placed = [locate_labels(column, settings, missing) for column in found]
    said: list[str] = []
    left_out = sum(len(column.cells.rows) for column in found) - sum(len(cells.rows) for cells in each_placed)
    if left_out and settings.level == "sequence" and not settings.is_number:
        folded = {text.casefold() for text in missing}
        as_written = {text for column in found for text in column.cells.texts if text.casefold() in folded}
        words = ", ".join(map(repr, sorted(as_written)))
        said.append(f"{settings.name}: {left_out:,} cells mean that nothing was measured ({words}), and are no class")
    values, censoring, classes, unit = settings.kind.parse(found, each_placed, decimal, said)
    of_labels = [np.full(len(cells.rows), column.output) for column, cells in zip(found, each_placed, strict=True)]
    if settings.conditions:
        outputs, of_labels = outputs_by_condition(found, each_placed, outputs, settings)
    of_rows = np.concatenate([cells.rows for cells in each_placed])
    positions = [cells.positions for cells in each_placed if cells.positions is not None]
    measured = Replicates(
        of_rows,
        rows.records[of_rows],
        np.concatenate(of_labels),
        np.concatenate(values),
        np.concatenate(censoring),
        np.concatenate(positions) if positions else None,
    )
    labels = merge_replicates(measured, settings, rows.num_records, rows.table.row, outputs, said, rows.others)
    return TaskLabels(settings, outputs, classes, unit, tuple(said), labels)
