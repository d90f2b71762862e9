"""What is written in a column: the cells in which something was measured, each distinct text once.

In: a column of text. Out: `NonEmptyCells`. For cells with labels of residues or pairs (``HHHEEC``, ``0.1 0.3 - 0.2``,
``3, 17``, ``3-17:8.2; 5-9:4.1``): one cell for each label. For a column of bounds: whether the true value is above or
below the number. Kept: nothing. The cost depends on the cells that hold something, not on the number of rows.
"""

import json
import re
from collections.abc import Callable, Collection
from contextlib import suppress
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from finetune.tables.table import Table
from finetune.tasks.settings import TaskSettings
from zymogen.settings.section import unknown_word

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


_SEPARATOR = re.compile(r"[\s;,]|^\[")


_PAIR = re.compile(r"(\d+)-(\d+):(\S+)")


def residue_labels(cells: NonEmptyCells, *, of_numbers: bool) -> tuple[NonEmptyCells, NDArray[np.int64]]:
    """The labels of all residues of each cell, and (cells,) how many each cell has.

    A cell of classes without white space, comma or semicolon has one character for each residue. Otherwise it is a
    list, as JSON writes it and predictions are written, or its labels stand between semicolons, or if it has none,
    between white space, or if it has none, between commas.
    """
    numbers: dict[str, int] = {}
    of_texts = []
    for text in cells.texts:
        if of_numbers or _SEPARATOR.search(text):
            of_texts.append(np.array([numbers.setdefault(t, len(numbers)) for t in items(text, "; ,")], np.int64))
        else:
            points, inverse = np.unique(np.frombuffer(text.encode("utf-32-le"), "<u4"), return_inverse=True)
            ids = [numbers.setdefault(chr(point), len(numbers)) for point in points.tolist()]
            of_texts.append(np.array(ids, np.int64)[inverse])
    each = [of_texts[which] for which in cells.which.tolist()]
    counts = np.array([len(labels) for labels in each], np.int64)
    positions = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
    which = np.concatenate(each) if each else np.zeros(0, np.int64)
    return NonEmptyCells(np.repeat(cells.rows, counts), which, tuple(numbers), positions.astype(np.int32)), counts


def mark_listed_residues(
    cells: NonEmptyCells, first: int, residues: NDArray[np.int64], where: Callable[[int], str]
) -> NonEmptyCells:
    """A letter for each residue of cells that list numbers, as ``3, 17``: 1 for those that are listed, 0 for others.

    Args:
        cells: of the column.
        first: number of the first residue.
        residues: (cells,) residues of each cell's protein.
        where: the place of a row, for errors.

    Raises:
        ValueError: an item is no number of a residue; the message gives its place.
    """
    texts = []
    for row, which, length in zip(cells.rows.tolist(), cells.which.tolist(), residues.tolist(), strict=True):
        letters = ["0"] * length
        for item in filter(None, items(cells.texts[which], ";|, ")):
            at = int(item) - first if item.isdecimal() else -1
            if not 0 <= at < length:
                raise ValueError(f"{where(row)}: {item!r} is none of {length} residues, counted from {first}")
            letters[at] = "1"
        texts.append("".join(letters))
    return NonEmptyCells(cells.rows, np.arange(len(texts)), tuple(texts))


def pair_labels(cells: NonEmptyCells, where: Callable[[int], str]) -> NonEmptyCells:
    """The labels of the pairs of residues that cells name, such as ``3-17:8.2``, counted from 1.

    A pair has no direction: ``17-3`` is ``3-17``, and the first residue is the one before the other.

    Raises:
        ValueError: a part of a cell is no pair with a label; the message gives its place and what is allowed.
    """
    numbers: dict[str, int] = {}
    labels: list[tuple[int, int, int, int]] = []
    for row, text in zip(cells.rows.tolist(), (cells.texts[i] for i in cells.which.tolist()), strict=True):
        for part in filter(None, re.split(r"[\s;]+", text)):
            found = _PAIR.fullmatch(part)
            first, second = sorted(int(number) - 1 for number in found.groups()[:2]) if found else (-1, -1)
            if found is None or first < 0 or first == second:
                raise ValueError(
                    f"{where(row)}: {part!r} is no label of a pair of residues; write first residue, second residue "
                    "and label as in '3-17:8.2; 5-9:4.1', counting from 1"
                )
            labels.append((row, numbers.setdefault(found[3], len(numbers)), first, second))
    rows, which, *places = np.array(labels, np.int64).reshape(-1, 4).T
    return NonEmptyCells(rows, which, tuple(numbers), np.stack(places, 1).astype(np.int32))


BOUND_WORDS = {
    **dict.fromkeys((">", ">=", "≥", ">>", "gt", "ge", "greater", "greater than", "more than", "above", "at least"), 1),
    **dict.fromkeys(("over", "lower bound", "right", "right censored", "right-censored"), 1),
    **dict.fromkeys(("<", "<=", "≤", "<<", "lt", "le", "less", "less than", "below", "at most", "under"), -1),
    **dict.fromkeys(("upper bound", "left", "left censored", "left-censored"), -1),
    **dict.fromkeys(("=", "==", "~", "≈", "exact", "none", "equal", "equals", "equal to", "measured", "uncensored"), 0),
    **dict.fromkeys(("0", "no", "false", "n", "f", "na", "n/a", "nan", "-"), 0),
}
"""Text in lower case -> 1: the true value is above the number, -1: below, 0: the number is exact."""


def censoring_of(text: str, settings: TaskSettings) -> int:
    """1 where the true value is above the number, -1 below, 0 where it is exact.

    Raises:
        ValueError: the text is none of the words.
    """
    word = normalize_bound(text)
    given = dict.fromkeys(settings.lower_bounds, 1) | dict.fromkeys(settings.upper_bounds, -1)
    found = given.get(text, BOUND_WORDS.get(word))
    if found is None:
        said = unknown_word(f"bound of {settings.name!r}", text, [*given, *BOUND_WORDS])
        raise ValueError(f"{said}; name it in tasks.lower_bounds or tasks.upper_bounds")
    return found


def normalize_bound(text: str) -> str:
    """A text in lower case without quotes, as ChEMBL has '='."""
    return text.strip("'\" ").casefold()
