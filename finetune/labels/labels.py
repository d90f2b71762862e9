"""The observed labels of one objective, in compressed rows: a label that is missing has no place here.

In: nothing; this is the type. Kept: nothing. NumPy alone.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from finetune.tables.numbers import ABOVE as ABOVE
from finetune.tables.numbers import BELOW as BELOW
from finetune.tables.numbers import EXACT as EXACT


@dataclass(frozen=True, slots=True)
class Labels:
    """Labels of N records for one objective with one or more outputs (tasks), in the order of the records.

    Label ``i`` of record ``r`` lies at ``pointers[r] <= i < pointers[r + 1]``; within a record labels are ordered by
    position, then by output. An observed negative or zero is a stored 0.
    """

    pointers: NDArray[np.int64]
    """(N + 1,) first label of each record, then their number M."""
    outputs: NDArray[np.int32]
    """(M,) which output of the objective the label is of."""
    values: NDArray[np.float32]
    """(M,) after the task's transform, in its scale (not z-scored); of classes, the index of the class."""
    censoring: NDArray[np.int8] | None = None
    """(M,) `EXACT`, `BELOW` or `ABOVE`; None where every label is exact."""
    positions: NDArray[np.int32] | None = None
    """(M,) or (M, 2): residue, or pair of residues, of the record, from 0; None for labels of whole sequences."""
    replicates: NDArray[np.int32] | None = None
    """(M,) how many measurements the label is made of; None where each is of one."""
    spread: NDArray[np.float32] | None = None
    """(M,) their sample standard deviation, NaN for one; None where `replicates` is None."""

    @property
    def num_records(self) -> int:
        """Number of records, N."""
        return len(self.pointers) - 1

    def __len__(self) -> int:
        return len(self.values)


def ranges(first: NDArray[np.int64], end: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The numbers of some ranges, one range after the other, and which range each is of."""
    counts = end - first
    of = np.repeat(np.arange(len(first)), counts)
    return of, np.arange(len(of)) + np.repeat(first - (np.cumsum(counts) - counts), counts)
