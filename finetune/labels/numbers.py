"""Labels that are numbers: one unit, one scale.

In: columns of text, the settings of a task. Out: values in the task's scale, with bounds. Kept: nothing.
"""

from collections import Counter
from collections.abc import Sequence
from typing import cast

import numpy as np
from numpy.typing import NDArray

from finetune.labels.locate import ColumnCells
from finetune.tables.numbers import EXACT, MOLAR, Decimal, MixedColumnError, ParsedNumbers, molar, molar_factor, parse
from finetune.tasks.cells import NonEmptyCells, censoring_of, written
from finetune.tasks.settings import TaskSettings
from finetune.tasks.task import Scale

_NOISE, _MOST_MERGED = 1e-12, 0.1
_LARGEST = float(np.finfo(np.float32).max)


def numbers_of(
    columns: Sequence[ColumnCells],
    placed: Sequence[NonEmptyCells],
    settings: TaskSettings,
    decimal: str,
    said: list[str],
) -> tuple[list[NDArray[np.float64]], list[NDArray[np.int8]], str]:
    """For each column its values in the task's scale and their censoring; and the unit of the user's numbers.

    The unit is the task's, or that of the cells, or the one that most rows have in the task's column of units.

    Args:
        columns: the columns.
        placed: the labels of each.
        settings: of the task.
        decimal: the decimal sign, or "auto".
        said: gets sentences for the user.

    Raises:
        ValueError: a text is no number, a number has no logarithm or is too large, or units do not fit together.
    """
    numbers = [_parsed(column, cells, settings, decimal) for column, cells in zip(columns, placed, strict=True)]
    for column, of_column in zip(columns, numbers, strict=True):
        said += [f"{column.name}: {text}" for text in of_column.said]
    units = Counter[str]()
    for of_column, cells in zip(numbers, placed, strict=True):
        units[of_column.unit] += len(cells.rows)
    of_rows = [_units_of_rows(column, cells, settings) for column, cells in zip(columns, placed, strict=True)]
    units.update(text for texts in of_rows if texts is not None for text in texts)
    unit = settings.unit or next((name for name, _ in units.most_common() if name), "")
    unit = molar(unit) or unit
    if settings.transform == "p":
        molar_factor(unit, f"tasks: the unit of {settings.name!r}")
    scale = Scale(settings.transform, unit)
    values, censoring = [], []
    for column, cells, of_column, texts in zip(columns, placed, numbers, of_rows, strict=True):
        each, bounds = of_column.values[cells.which], of_column.censoring[cells.which]
        if settings.bound_column is not None:
            bounds = np.where(bounds == EXACT, _bounds_of_rows(column, cells, settings.bound_column, settings), bounds)
        if texts is not None:
            each = each * _factors(column, cells, texts, unit, settings)
        elif of_column.unit and of_column.unit != unit:
            each = each * _factors(column, cells, [of_column.unit] * len(each), unit, settings)
        if scale.is_logarithm:
            said_ = (
                f"is not above 0 and has no logarithm; correct it, add it to tasks.missing, or give {settings.name!r} "
            )
            _refuse(each <= 0, column, cells, f"{said_}the transform 'none'")
        each = scale.of(each)
        _refuse(np.abs(each) > _LARGEST, column, cells, f"is larger than a label can be, {_LARGEST:.2g}; correct it")
        _require_distinct(each, column)
        values.append(each)
        censoring.append((-bounds if scale.turns_bounds else bounds).astype(np.int8))
    return values, censoring, unit


def _parsed(column: ColumnCells, cells: NonEmptyCells, settings: TaskSettings, decimal: str) -> ParsedNumbers:
    """The distinct texts of a column as numbers."""
    sign = None if decimal == "auto" else cast(Decimal, decimal)
    try:
        found = parse(cells.texts, unit="" if settings.unit_column else settings.unit, decimal=sign)
    except MixedColumnError as error:
        raise ValueError(f"{column.where(cells.first_row(error.index))}: {error}") from None
    if settings.unit_column and found.unit:
        raise ValueError(
            f"{column.rows.table.name}, column {column.name!r}: its cells have the unit {found.unit!r}, and "
            f"{settings.name!r} has a unit_column; remove one of them"
        )
    if found.refused:
        first, more = found.refused[0], len(found.refused) - 1
        rest = f" ({more} more such text{'s' * (more > 1)} in this column)" if more else ""
        raise ValueError(
            f"{column.where(cells.first_row(first))}: {cells.texts[first][:60]!r} is no number{rest}; correct it, or "
            "add it to tasks.missing if it means that nothing was measured"
        )
    return found


def _bounds_of_rows(
    column: ColumnCells, cells: NonEmptyCells, bound_column: str, settings: TaskSettings
) -> NDArray[np.int8]:
    """What the task's column of bounds says of each label; a blank cell says that it is exact.

    Raises:
        ValueError: a label's row has a text that is no bound.
    """
    table = column.rows.table
    table.require(bound_column, f"tasks: {settings.name!r}: bound_column")
    bounds = written(table, bound_column)
    which = bounds.over_rows(np.arange(len(bounds.texts)), table.num_rows, -1)[cells.rows]
    found = np.zeros(len(which), np.int8)
    for text in np.unique(which[which >= 0]).tolist():
        try:
            found[which == text] = censoring_of(bounds.texts[text], settings)
        except ValueError as error:
            raise ValueError(f"{column.where(int(cells.rows[np.argmax(which == text)]))}: {error}") from None
    return found


def _units_of_rows(column: ColumnCells, cells: NonEmptyCells, settings: TaskSettings) -> list[str] | None:
    """The unit of each label's row; None if the task has no column of units.

    Raises:
        ValueError: a label's row has no unit.
    """
    if settings.unit_column is None:
        return None
    table = column.rows.table
    table.require(settings.unit_column, f"tasks: {settings.name!r}: unit_column")
    units = written(table, settings.unit_column)
    texts = np.array([molar(text) or text for text in units.texts], object)
    found: list[str] = units.over_rows(texts, table.num_rows, "")[cells.rows].tolist()
    if "" in found:
        raise ValueError(
            f"{column.where(int(cells.rows[found.index('')]))}: the label has no unit in column "
            f"{settings.unit_column!r}; write it, or leave the label out"
        )
    return found


def _factors(
    column: ColumnCells, cells: NonEmptyCells, texts: Sequence[str], unit: str, settings: TaskSettings
) -> NDArray[np.float64]:
    """What each label is multiplied by to be in the user's unit.

    Raises:
        ValueError: two units of which one is not molar.
    """
    factors = {}
    for text in dict.fromkeys(texts):
        if text != unit and not (molar(text) and molar(unit)):
            row = int(cells.rows[texts.index(text)])
            raise ValueError(
                f"{column.where(row)}: the unit is {text!r}, and that of {settings.name!r} is {unit!r}; convert the "
                f"values to one unit, or make a task of each (converted here are {', '.join(MOLAR)})"
            )
        # A power of ten is exact, where the quotient of two factors is not.
        factors[text] = (
            1.0 if text == unit else 10.0 ** round(np.log10(molar_factor(text, "") / molar_factor(unit, "")))
        )
    return np.array([factors[text] for text in texts], np.float64)


def _refuse(wrong: NDArray[np.bool_], column: ColumnCells, cells: NonEmptyCells, said: str) -> None:
    if wrong.any():
        first, more = int(np.argmax(wrong)), int(wrong.sum()) - 1
        rest = f" ({more} more such label{'s' * (more > 1)} in this column)" if more else ""
        text = cells.texts[int(cells.which[first])]
        raise ValueError(f"{column.where(int(cells.rows[first]))}: {text!r}{rest} {said}")


def _require_distinct(values: NDArray[np.float64], column: ColumnCells) -> None:
    """Refuse numbers of which many become equal in float32, as which labels are stored.

    Raises:
        ValueError: more than a tenth of the distinct numbers become equal to the one before them.
    """
    distinct = np.unique(values)
    differ = np.diff(distinct) > _NOISE * np.abs(distinct[1:])
    merged = np.flatnonzero(differ & (np.diff(distinct.astype(np.float32)) == 0))
    if len(merged) > _MOST_MERGED * len(distinct):
        first, second = distinct[merged[0] : merged[0] + 2].tolist()
        raise ValueError(
            f"{column.rows.table.name}, column {column.name!r}: labels differ too little for their size: {len(merged)} "
            f"of {len(distinct)} distinct numbers are stored as the one before, such as {second!r} as {first!r}; "
            "subtract a constant from them"
        )
