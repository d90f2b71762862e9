"""Cells with a label for each residue, or for pairs of residues.

In: cells such as ``HHHEEC``, ``0.1 0.3 - 0.2``, ``3, 17`` or ``3-17:8.2; 5-9:4.1``. Out: a cell for each label,
with its place. Kept: nothing.
"""

import re
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from finetune.tasks.cells import NonEmptyCells, items

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


def listed(cells: NonEmptyCells, first: int, residues: NDArray[np.int64], where: Callable[[int], str]) -> NonEmptyCells:
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
