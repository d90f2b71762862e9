"""Columns that differ between rows of one label: conditions that are averaged, mutations that must not be.

In: a table, the rows of each label. Out: for each column the labels whose rows differ in it. Kept: nothing. rdkit
(https://rdkit.org), where it is installed, tells which texts are one molecule.
"""

import re
from collections.abc import Collection, Hashable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from finetune.tables.mutations import are_of_nucleotides, substitutions_or
from finetune.tables.numbers import number_of
from finetune.tables.table import Table
from finetune.tasks.cells import NonEmptyCells, written
from finetune.tasks.classes import canonical_smiles, is_molecules
from zymogen.settings.origin import format_option

_NO_CONDITION = re.compile(
    r"(?:^|[\s_.-])(?:id|ids|name|date|day|time|year|rep\w*|batch|plate|well|run|sample|experiment|index|row|comments?"
    r"|notes?|sd|std|sem|se|err|error|cv|n|counts?|reads|operator|source|ref\w*|doi|pmid)(?:$|[\s_.\d-])",
    re.I,
)
"""Names of columns in which replicates differ: they say who measured, when and how well, not under which condition."""
_DATE = re.compile(r"\d{1,4}[-/.]\d{1,2}[-/.]\d{1,4}(?:[T ].*)?")
_MOST_SHARE = 0.9
_MOST_NUMBERS = 0.5
"""Share of the rows that differ above which a column of numbers is one of measurements."""


def canonical_texts(column: str, texts: Sequence[str]) -> list[str]:
    """Distinct texts of a column as one text for each meaning: 7 for 7.0, the canonical SMILES of a molecule."""
    if is_molecules(column, texts):
        return [smiles or text for smiles, text in zip(canonical_smiles(texts), texts, strict=True)]
    numbers = map(number_of, texts)
    return [text if number is None else f"{number:.12g}" for text, number in zip(texts, numbers, strict=True)]


@dataclass(frozen=True)
class UnusedColumns:
    """The columns of a table that no setting of a run reads."""

    table: Table
    names: tuple[str, ...]

    @classmethod
    def of(cls, table: Table, read: Collection[str | None]) -> "UnusedColumns":
        """The columns of a table, except those that are read."""
        return cls(table, tuple(name for name in table.columns if name not in read))

    def differing(self, rows: NDArray[np.int64], first: NDArray[np.int64]) -> dict[str, NDArray[np.bool_]]:
        """Column of conditions -> (labels,) whether rows of the label have two values in it.

        Args:
            rows: (m,) rows of each label, one label after the other.
            first: (labels,) first of them.

        Raises:
            ValueError: rows of one label have different mutations; the message names two of them.
        """
        for name, codes in self._mutations.items():
            if (found := _differ(codes[rows], first)).any():
                self._refuse(name, codes, rows[first[np.argmax(found)] :], int(found.sum()))
        found_of = {name: _differ(codes[rows], first) for name, codes in self._conditions.items()}
        return {name: found for name, found in found_of.items() if found.any()}

    def contradicting(self, rows: NDArray[np.int64], first: NDArray[np.int64]) -> NDArray[np.bool_]:
        """(labels,) whether rows of the label have different mutations; arguments as of `differing`."""
        differ = [_differ(codes[rows], first) for codes in self._mutations.values()]
        return np.asarray(np.logical_or.reduce([np.zeros(len(first), np.bool_), *differ]))

    def _refuse(self, name: str, codes: NDArray[np.int64], rows: NDArray[np.int64], count: int) -> None:
        """Raise for the first of some rows and the next that has another mutation."""
        given = rows[codes[rows] >= 0]
        one, other = int(given[0]), int(given[np.argmax(codes[given] != codes[given[0]])])
        cells = self.table.column(name)
        raise ValueError(
            f"{self.table.row(one)} and {self.table.shown(other)}: rows of one sequence have different mutations in "
            f"column {name!r}, {cells[one]!r} and {cells[other]!r}, and would be averaged ({count} labels have this): "
            f"is the sequence that of the wild type?{format_option('data.mutation', before=' Name the column with ')} "
            "Otherwise leave one of the rows out"
        )

    @cached_property
    def _mutations(self) -> dict[str, NDArray[np.int64]]:
        """Column of mutations -> (rows,) number of the mutations of each row, -1 where there are none."""
        found = {}
        for name in self.names:
            cells = written(self.table, name)
            read_of = [substitutions_or(text, None) for text in cells.texts]
            changes = [
                None if read is None else frozenset((each.number, each.new) for each in read if each.new != each.old)
                for read in read_of
            ]
            read = [each for each in changes if each is not None]
            if any(read) and len(read) >= _MOST_SHARE * len(changes):
                of_gene = are_of_nucleotides(each for changes in read_of for each in changes or ())
                found[name] = self._codes(cells, [None] * len(changes) if of_gene else changes)
        return found

    @cached_property
    def _conditions(self) -> dict[str, NDArray[np.int64]]:
        """Column that may be a condition -> (rows,) number of each row's value, -1 where it is empty."""
        found = {}
        for name in self.names:
            cells = written(self.table, name)
            values = canonical_texts(name, cells.texts)
            is_number = [number_of(text.lstrip("<>=~ ")) is not None for text in cells.texts]
            most = _MOST_NUMBERS * len(cells.rows) if sum(is_number) >= _MOST_SHARE * len(is_number) else np.inf
            is_other = name in self._mutations or _NO_CONDITION.search(name) or all(map(_DATE.fullmatch, cells.texts))
            if not is_other and 1 < len({*values}) <= most:
                found[name] = self._codes(cells, values)
        return found

    def _codes(self, cells: NonEmptyCells, values: Sequence[Hashable | None]) -> NDArray[np.int64]:
        """(rows,) equal numbers for equal values of distinct texts; -1 for None and for an empty cell."""
        numbers = {value: number for number, value in enumerate(dict.fromkeys(values))}
        codes = np.array([-1 if value is None else numbers[value] for value in values], np.int64)
        return cells.over_rows(codes, self.table.num_rows, -1)


def _differ(codes: NDArray[np.int64], first: NDArray[np.int64]) -> NDArray[np.bool_]:
    """(labels,) whether the codes of a label, of which -1 is none, are not all equal."""
    lowest = np.minimum.reduceat(np.where(codes < 0, np.iinfo(np.int64).max, codes), first)
    return np.maximum.reduceat(codes, first) > lowest
