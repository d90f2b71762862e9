"""Columns that become several outputs: a condition such as a pH, and cells that list labels (``Membrane; Nucleus``).

In: the columns of a task with their labels, columns of conditions. Out: names of outputs, the output of each label; of
lists, a column of yes and no for each label. A label that a cell does not list is negative; a row whose cell is missing
has no label at all. Kept: nothing.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from finetune.labels.locate import ColumnCells
from finetune.labels.other_columns import canonical_texts
from finetune.tables.numbers import number_of
from finetune.tables.table import Table
from finetune.tasks.cells import NonEmptyCells, items, written
from finetune.tasks.settings import TaskSettings

LIST_SEPARATORS = ";|,"
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
    listed = [[{each for each in items(text, LIST_SEPARATORS) if each} for text in cells.texts] for cells in read]
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


_MOST = 5000
_NOT_GIVEN = "not given"


def outputs_by_condition(
    columns: Sequence[ColumnCells], placed: Sequence[NonEmptyCells], names: Sequence[str], settings: TaskSettings
) -> tuple[tuple[str, ...], list[NDArray[np.int64]]]:
    """One output for each of `names` and each value of the conditions under which it was measured.

    Numbers are equal where they have one value (7 and 7.0), molecules where they have one canonical SMILES, other texts
    where they are the same. An empty cell is a value too, "not given". Outputs are in the order of `names`, then of
    values, numbers by size, whatever the order of rows.

    Args:
        columns: columns of labels.
        placed: the labels of each.
        names: outputs without conditions; `ColumnCells.output` is an index of them.
        settings: of the task.

    Returns:
        Names of the outputs, and for each column (labels,) the output of each label.

    Raises:
        ValueError: the table has no such column, or there are too many values.
    """
    table = columns[0].rows.table
    for name in settings.conditions:
        table.require(name, f"tasks: {settings.name!r}: conditions")
    values_of = [_values(table, name) for name in settings.conditions]
    found: list[list[tuple[int, *tuple[str, ...]]]] = [
        [(column.output, *(each[row] for each in values_of)) for row in cells.rows.tolist()]
        for column, cells in zip(columns, placed, strict=True)
    ]
    distinct = sorted({key for keys in found for key in keys}, key=_order)
    if len(distinct) > _MOST:
        raise ValueError(
            f"tasks: {settings.name!r}: too many conditions: {', '.join(map(repr, settings.conditions))} have "
            f"{len(distinct):,} combinations of values, each of which is an output, and at most {_MOST:,} are allowed; "
            "name columns with fewer values, or leave rows out"
        )
    number = {key: at for at, key in enumerate(distinct)}
    outputs = tuple(
        ", ".join([names[output], *map(" ".join, zip(settings.conditions, values, strict=True))])
        for output, *values in distinct
    )
    return outputs or tuple(names), [np.array([number[key] for key in keys], np.int64) for keys in found]


def _order(key: tuple[int, *tuple[str, ...]]) -> tuple[object, ...]:
    """Outputs in their order, then numbers by size before other texts."""
    numbers = [(text, number_of(text)) for text in key[1:]]
    return key[0], *((np.inf, text) if number is None else (number, "") for text, number in numbers)


def _values(table: Table, column: str) -> list[str]:
    """(rows,) the cells of a column, equal where they mean the same; "not given" for an empty one."""
    cells = written(table, column)
    return list(cells.over_rows(np.array(canonical_texts(column, cells.texts), object), table.num_rows, _NOT_GIVEN))
