"""The order of a pass: a keyed permutation in O(1) memory.

In: a number of items and a key. Out: the item at any position. Kept: nothing; a position is its own state.

A Feistel network permutes the numbers below the smallest power of two that is large enough. To a result that is no item
it is applied again until the result is one (Black and Rogaway 2002, doi:10.1007/3-540-45760-7_9), which keeps it a
bijection.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from zymogen import keyed_random

_ROUNDS = 6


@dataclass(frozen=True, slots=True)
class Permutation:
    """The permutation of ``range(size)`` that belongs to `key`."""

    size: int
    key: int

    def __call__(self, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        """The items at `positions`, each in ``[0, size)``; any shape."""
        bits = max(2, (self.size - 1).bit_length())
        items = positions.astype(np.uint64)
        outside = np.ones(items.shape, np.bool_)
        while outside.any():
            items[outside] = self._network(items[outside], bits)
            outside = items >= np.uint64(self.size)
        return items.astype(np.int64)

    def _network(self, items: NDArray[np.uint64], bits: int) -> NDArray[np.uint64]:
        """Apply the unbalanced network to numbers in ``[0, 2**bits)``: each half is XORed with a hash of the other."""
        low_bits = bits // 2
        low_mask = np.uint64((1 << low_bits) - 1)
        high_mask = np.uint64((1 << (bits - low_bits)) - 1)
        low = items & low_mask
        high = items >> np.uint64(low_bits)
        for round_index in range(_ROUNDS):
            round_key = keyed_random.key(self.key, round_index)
            if round_index % 2:
                high ^= keyed_random.hashes(round_key, low) & high_mask
            else:
                low ^= keyed_random.hashes(round_key, high) & low_mask
        return (high << np.uint64(low_bits)) | low
