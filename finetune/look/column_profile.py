"""One column as it is written: which cells hold something, which are numbers, which are words.

In: a table. Out: `ColumnProfile`. Kept: nothing.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from finetune.look.terms import NOT_MEASURED, SCALES
from finetune.tables.numbers import MISSING, Decimal, MixedColumnError, ParsedNumbers, is_number, name_and_unit, parse
from finetune.tables.table import Table
from finetune.tasks.cells import NonEmptyCells, written

_NUMBERS = 0.8
"""Share of cells that are numbers from which on a column is one of numbers, and its other texts mean 'missing'."""
_MOST_OTHER_TEXTS = 12


@dataclass(frozen=True)
class ColumnProfile:
    """A column of R rows."""

    name: str
    num_rows: int
    all: NonEmptyCells
    """Every cell that is not blank."""
    decimal: Decimal | None = None
    """The decimal sign, where the cells of the column do not show it."""
    is_text: bool = False
    """Whether digits are letters, such as a label for each residue."""
    unit: str = ""
    """The unit of its numbers, where another column has it."""
    bounds: NDArray[np.int8] | None = None
    """(R,) 1 where another column says that the true value is above the number, -1 below, 0 where it is exact."""

    @cached_property
    def not_measured(self) -> tuple[str, ...]:
        """Texts of the column that mean that nothing was measured."""
        found = [text for text in self.all.texts if text.casefold() in NOT_MEASURED]
        others = {text for text in self.all.texts if text not in found}
        if "-" in found and others and all(set(text) <= {"+", "/", "-"} for text in others):
            found.remove("-")  # the lowest of a scale of plus signs
        words = {text.casefold() for text in others}
        if words and any(words < {*scale} and "none" in scale for scale in SCALES):
            found = [text for text in found if text.casefold() != "none"]  # the lowest of a scale of words
        if "none" in found and words and not any(map(is_number, others)):
            found.remove("none")  # in lower case among words: a class, and not Python's None
        return tuple(found)

    @cached_property
    def numbers(self) -> ParsedNumbers | None:
        """The distinct texts as numbers, those that are none NaN; None where the column is not one of numbers."""
        cells = self.all.without(self.not_measured)
        if not len(cells.rows) or self.is_text:
            return None
        counts = np.bincount(cells.which, minlength=len(cells.texts))
        if len(cells.texts) > 50 and not any(map(is_number, cells.texts[:50])):
            return None
        try:
            found = parse(cells.texts, unit=self.unit or name_and_unit(self.name)[1], decimal=self.decimal)
        except MixedColumnError:
            return None
        refused = list(found.refused)
        enough = counts.sum() - counts[refused].sum() >= _NUMBERS * counts.sum()
        return found if enough and len(refused) <= _MOST_OTHER_TEXTS else None

    @cached_property
    def other_texts(self) -> tuple[str, ...]:
        """Texts of a column of numbers that are none."""
        texts = self.all.without(self.not_measured).texts
        return tuple(texts[index] for index in self.numbers.refused) if self.numbers else ()

    @cached_property
    def missing(self) -> tuple[str, ...]:
        """Texts that a task must name as missing: those of the column that are not by default."""
        usual = {text.casefold() for text in MISSING}
        return tuple(text for text in (*self.not_measured, *self.other_texts) if text.casefold() not in usual)

    @cached_property
    def cells(self) -> NonEmptyCells:
        """The cells in which something was measured."""
        return self.all.without((*self.not_measured, *self.other_texts))

    @cached_property
    def counts(self) -> NDArray[np.int64]:
        """How many cells have each of the distinct texts of `cells`."""
        return np.bincount(self.cells.which, minlength=len(self.cells.texts)).astype(np.int64)

    @cached_property
    def values(self) -> NDArray[np.float64]:
        """(R,) its numbers, NaN without one."""
        if self.numbers is None:
            return np.full(self.num_rows, np.nan)
        return self.all.without(self.not_measured).over_rows(self.numbers.values, self.num_rows, np.nan)

    @cached_property
    def censoring(self) -> NDArray[np.int8]:
        """(R,) 1 where the true value is above the number, such as '>5', -1 below, 0 for an exact one or none."""
        found = np.zeros(self.num_rows, np.int8)
        if self.numbers is not None:
            found = self.all.without(self.not_measured).over_rows(self.numbers.censoring, self.num_rows, 0)
        if self.bounds is not None:
            found = np.where((found == 0) & ~np.isnan(self.values), self.bounds, found)
        return found

    @property
    def num_censored(self) -> int:
        """How many cells are bounds."""
        return int(np.count_nonzero(self.censoring))

    @property
    def texts(self) -> Sequence[str]:
        """Distinct texts in which something was measured."""
        return self.cells.texts

    @property
    def num_measured(self) -> int:
        """Number of cells in which something was measured."""
        return len(self.cells.rows)


def columns_of(table: Table) -> list[ColumnProfile]:
    """All columns of a table.

    Where the cells of a column do not show whether a comma is the decimal sign, those of the others decide.
    """
    read = [ColumnProfile(name, table.num_rows, written(table, name)) for name in table.columns]
    signs, unsure = [], []
    for column in read:
        texts = column.all.without(NOT_MEASURED).texts
        try:
            found = parse(texts)
        except MixedColumnError as error:
            if "data.decimal" in str(error):
                unsure.append(column.name)
            continue
        if found.decimal == "," and len(found.refused) < len(texts):
            signs.append(found.decimal)
    sign: Decimal = "," if signs or any("semicolon" in said for said in table.said) else "."
    return [
        ColumnProfile(column.name, column.num_rows, column.all, sign) if column.name in unsure else column
        for column in read
    ]
