"""What is written in a column: the cells in which something was measured, each distinct text once.

In: a column of text. Out: `NonEmptyCells`; `residues` makes one of them for each label of a residue. Kept: nothing.
A column of a thousand that are almost empty costs what is written in it, not its length.
"""

import json
import re
from collections.abc import Collection
from contextlib import suppress
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from finetune.tables.table import Table

_ONE = re.compile(r"""\[\s*([+-]?[\d.]+(?:e[+-]?\d+)?|"[^"]*"|'[^']*')\s*\]""", re.I)
"""A list of one number or text, as JSON and pandas write it."""


class NonEmptyCells(NamedTuple):
    """The cells of a column that hold something."""

    rows: NDArray[np.int64]
    """(cells,) row of each, rising."""
    which: NDArray[np.int64]
    """(cells,) index of its text in `texts`."""
    texts: tuple[str, ...]
    """The distinct texts without white space around them, in the order in which they first appear."""
    positions: NDArray[np.int32] | None = None
    """(cells,) or (cells, 2): residue or pair of residues, from 0, that each is about; None for whole sequences."""

    def of_texts(self, kept: NDArray[np.bool_]) -> "NonEmptyCells":
        """The cells whose texts are kept; (texts,) booleans."""
        numbers = np.cumsum(kept) - 1
        stay = kept[self.which]
        texts = tuple(text for text, is_kept in zip(self.texts, kept.tolist(), strict=True) if is_kept)
        positions = None if self.positions is None else self.positions[stay]
        return NonEmptyCells(self.rows[stay], numbers[self.which[stay]], texts, positions)

    def of_cells(self, kept: NDArray[np.bool_]) -> "NonEmptyCells":
        """The cells that are kept, and their texts; (cells,) booleans."""
        positions = None if self.positions is None else self.positions[kept]
        stay = NonEmptyCells(self.rows[kept], self.which[kept], self.texts, positions)
        used = np.zeros(len(self.texts), np.bool_)
        used[stay.which] = True
        return stay.of_texts(used)

    def over_rows(self, values: NDArray[Any], num_rows: int, otherwise: object) -> NDArray[Any]:
        """(rows,) the value of each row's text, of (texts,) values; `otherwise` for a row without a cell."""
        found = np.full(num_rows, otherwise, values.dtype)
        found[self.rows] = values[self.which]
        return found

    def first_row(self, text: int) -> int:
        """The first row that has a text, which is given by its index."""
        return int(self.rows[np.argmax(self.which == text)])

    def without(self, missing: Collection[str]) -> "NonEmptyCells":
        """The cells that are neither blank nor written as missing, in upper or lower case."""
        folded = {"", *(text.casefold() for text in missing)}
        return self.of_texts(np.array([text.casefold() not in folded for text in self.texts], np.bool_))


def written(table: Table, column: str) -> NonEmptyCells:
    """The cells of a column that are neither absent nor blank; rows are numbered from 0."""
    import pyarrow.compute as compute

    cells = table.cells.column(column)
    rows = np.flatnonzero(np.asarray(cells.is_valid().combine_chunks().to_numpy(zero_copy_only=False), np.bool_))
    trimmed = compute.utf8_trim_whitespace(cells.drop_null()).combine_chunks().dictionary_encode()
    texts = tuple(_alone(text) for text in trimmed.dictionary.to_pylist())
    which = np.asarray(trimmed.indices.to_numpy(zero_copy_only=False), np.int64)
    return NonEmptyCells(rows, which, texts).without(())


def items(text: str, signs: str) -> list[str]:
    """The texts that a cell lists: a list as JSON or pandas writes it, or what the first of some signs separates.

    An item of JSON that is null is empty.

    Args:
        text: of the cell.
        signs: what may separate; a space is any white space.
    """
    if text.startswith("[") and text.endswith("]"):
        for candidate in (text, text.replace("'", '"')):
            with suppress(ValueError):
                return ["" if each is None else str(each).strip() for each in json.loads(candidate)]
        text = text[1:-1].strip()
    sign = next((sign for sign in signs if (re.search(r"\s", text) if sign == " " else sign in text)), None)
    return [each.strip() for each in text.split(None if sign == " " else sign)] if sign else [text]


def _alone(text: str) -> str:
    """A text, or the only item of a list."""
    found = _ONE.fullmatch(text)
    return found[1].strip("\"'").strip() if found else text
