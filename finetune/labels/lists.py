"""Cells that list labels, such as ``Membrane; Nucleus``: one output for each label.

In: columns of cells. Out: a column of yes and no for each label, and the names of the outputs. Kept: nothing.
A label that a cell does not list is negative; a row whose cell is missing has no label at all.
"""

from collections.abc import Sequence

import numpy as np

from finetune.labels.placed import ColumnCells
from finetune.tasks.cells import NonEmptyCells, items
from finetune.tasks.settings import TaskSettings

SIGNS = ";|,"
"""Signs between labels of a cell that is no JSON list: the first one that it has."""


def outputs_by_label(
    columns: Sequence[ColumnCells], settings: TaskSettings
) -> tuple[tuple[str, ...], list[ColumnCells]]:
    """Names of the outputs, in alphabetical order, and what each row says of each.

    Args:
        columns: of the task.
        settings: of the task, whose columns are lists.
    """
    read = [column.cells.without(settings.missing) for column in columns]
    listed = [[{each for each in items(text, SIGNS) if each} for text in cells.texts] for cells in read]
    outputs = tuple(sorted(set().union(*(labels for of_column in listed for labels in of_column))))
    if not outputs:
        raise ValueError(f"tasks: {settings.name!r} has no label: every cell of its column is missing")
    found = []
    for column, cells, of_column in zip(columns, read, listed, strict=True):
        for number, label in enumerate(outputs):
            has = np.array([label in labels for labels in of_column], np.int64)
            found.append(
                ColumnCells(
                    column.rows, column.name, number, NonEmptyCells(cells.rows, has[cells.which], ("no", "yes"))
                )
            )
    return outputs, found
