"""How many records of a store have which length.

In: a `TokenStore`. Out: `LengthHistogram`. Kept: nothing.
"""

from collections import Counter
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from data.store.token_store import UINT64, TokenStore

_BLOCK_RECORDS = 1 << 20


@dataclass(frozen=True, slots=True)
class LengthHistogram:
    """How many records have which length."""

    values: NDArray[np.int64]
    """(distinct,) the lengths that occur, in residues, rising; at least one."""
    counts: NDArray[np.int64]
    """(distinct,) number of records of each length, at least 1."""

    @property
    def num_records(self) -> int:
        """Number of records."""
        return int(self.counts.sum())

    @property
    def num_residues(self) -> int:
        """Number of residues."""
        return int((self.values * self.counts).sum())

    def quantile(self, percent: int) -> int:
        """The smallest length that at least `percent` per cent of the records do not exceed (no interpolation)."""
        rank = max(1, -(-percent * self.num_records // 100))
        return int(self.values[np.searchsorted(np.cumsum(self.counts), rank)])

    def longer_than(self, residues: int) -> float:
        """Share of the records with more than `residues` residues."""
        return int(self.counts[self.values > residues].sum()) / self.num_records


def count_lengths(store: TokenStore) -> LengthHistogram:
    """Every length that occurs, with its number of records. N residues have at most sqrt(2 N) different lengths."""
    counted: Counter[int] = Counter()
    for start in range(0, store.num_records, _BLOCK_RECORDS):
        offsets = store.read("offsets.bin", UINT64, start, _BLOCK_RECORDS + 1)
        values, counts = np.unique(np.diff(offsets), return_counts=True)
        counted.update(dict(zip(values.tolist(), counts.tolist(), strict=True)))
    values = np.array(sorted(counted), np.int64)
    return LengthHistogram(values, np.array([counted[v] for v in values.tolist()], np.int64))
