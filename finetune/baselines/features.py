"""Features that need no model: the residue at each position, what a sequence is composed of, what surrounds a residue.

In: sequences as text. Out: `Features`, a row for each record or each residue. Kept: nothing.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from data.alphabet import STANDARD_RESIDUES
from finetune.metrics.predictions import LabelRows

_LETTERS = 26
_AMINO_ACID = np.full(256, len(STANDARD_RESIDUES), np.int64)
_AMINO_ACID[np.frombuffer(STANDARD_RESIDUES.encode(), np.uint8)] = np.arange(len(STANDARD_RESIDUES))
WINDOW = 7
"""Residues on each side of one that its window holds."""


@dataclass(frozen=True, slots=True)
class Features:
    """A matrix with a row for each record, or for each residue of each record."""

    matrix: Any
    """Dense, or sparse where it is one-hot: what gives some of its rows by ``matrix[rows]``."""
    description: str
    first_rows: NDArray[np.int64] | None = None
    """(records,) row of the first residue of each record; None where a row is a record."""

    def rows(self, labels: LabelRows) -> NDArray[np.int64]:
        """(n,) the row of the matrix for each label."""
        if self.first_rows is None:
            return labels.records
        assert labels.positions is not None
        return self.first_rows[labels.records] + labels.positions


def letters(sequences: Sequence[str]) -> NDArray[np.uint8]:
    """(records, length) letters of sequences of one length."""
    return np.frombuffer("".join(sequences).encode(), np.uint8).reshape(len(sequences), -1)


def of_one_length(sequences: Sequence[str]) -> bool:
    """Whether all sequences are equally long, as variants of one protein are."""
    return len({len(sequence) for sequence in sequences}) == 1


def sequence_features(sequences: Sequence[str]) -> Features:
    """`one_hot` of sequences of one length, `composition` of others."""
    return one_hot(sequences) if of_one_length(sequences) else composition(sequences)


def one_hot(sequences: Sequence[str]) -> Features:
    """Which residue, from A to Z, stands at each position, and how often each stands in sequences of one length.

    Without the second, nothing would be known of a mutation at a position that never varies in training.

    Given as the difference from the sequence of each position's most frequent residue: centred, it is the same matrix,
    and a variant with m mutations takes 4 m numbers of it instead of its length.
    """
    from scipy.sparse import csr_array

    residues = letters(sequences).astype(np.int64) - ord("A")
    count, length = residues.shape
    frequent = np.stack([np.bincount(column, minlength=_LETTERS) for column in residues.T]).argmax(1)
    record, position = np.nonzero(residues != frequent)
    here, usual = position * _LETTERS + residues[record, position], position * _LETTERS + frequent[position]
    counted = length * _LETTERS
    values = np.repeat((1.0, -1.0, 1.0, -1.0), len(record))
    columns = np.concatenate([here, usual, counted + here % _LETTERS, counted + usual % _LETTERS])
    rows = np.tile(record, 4)
    used, column = np.unique(columns, return_inverse=True)
    matrix = csr_array((values, (rows, column)), (count, max(1, len(used))))
    varying = len(np.unique(position))
    return Features(matrix, f"one-hot residues of {varying} positions that vary, of {length}, and counts of residues")


def composition(sequences: Sequence[str]) -> Features:
    """Shares of the 20 amino acids and of their 400 pairs of neighbours, and the logarithm of the length."""
    kinds = len(STANDARD_RESIDUES)
    matrix = np.zeros((len(sequences), kinds + kinds**2 + 1))
    for row, sequence in zip(matrix, sequences, strict=True):
        residues = _AMINO_ACID[np.frombuffer(sequence.encode(), np.uint8)]
        pairs = residues[:-1] * (kinds + 1) + residues[1:]
        singles = np.bincount(residues, minlength=kinds + 1)[:kinds]
        doubles = np.bincount(pairs, minlength=(kinds + 1) ** 2).reshape(kinds + 1, kinds + 1)[:kinds, :kinds]
        row[:kinds] = singles / max(1, singles.sum())
        row[kinds:-1] = doubles.ravel() / max(1, doubles.sum())
        row[-1] = np.log(max(1, len(sequence)))
    return Features(
        matrix, "shares of amino acids and of neighbouring pairs, and the length; not the order of residues"
    )


class _Windows:
    """The windows of all residues; only those that are asked for are made."""

    def __init__(self, sequences: Sequence[str], half: int) -> None:
        self.lengths = np.array([len(sequence) for sequence in sequences], np.int64)
        self.starts = np.cumsum(self.lengths) - self.lengths
        self.residues = _AMINO_ACID[np.frombuffer("".join(sequences).encode(), np.uint8)].astype(np.int8)
        self.half = half

    def __getitem__(self, rows: NDArray[np.int64]) -> Any:
        """(rows, kinds of residues x places) of these residues."""
        from scipy.sparse import csr_array

        kinds, width = len(STANDARD_RESIDUES) + 1, 2 * self.half + 1
        record = np.searchsorted(self.starts, rows, side="right") - 1
        first, end = self.starts[record], self.starts[record] + self.lengths[record]
        around = rows[:, None] + np.arange(-self.half, self.half + 1)
        inside = (around >= first[:, None]) & (around < end[:, None])
        columns = self.residues[np.clip(around, 0, len(self.residues) - 1)] + kinds * np.arange(width)
        pointers = np.concatenate([[0], np.cumsum(inside.sum(1))])
        return csr_array((np.ones(pointers[-1]), columns[inside], pointers), (len(rows), kinds * width))


def windows(sequences: Sequence[str], half: int = WINDOW) -> Features:
    """One-hot residues of the window around each residue; places beyond an end are 0, other letters are a kind."""
    matrix = _Windows(sequences, half)
    return Features(matrix, f"one-hot residues of a window of {2 * half + 1}", matrix.starts)
