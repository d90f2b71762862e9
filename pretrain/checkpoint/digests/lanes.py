"""The digest of tensors, which no sharding changes: pieces of a tensor have digests that add up to that of the whole.

In: a tensor's name and elements `[start, stop)` of it, flattened. Out: two sums modulo 2^64. Kept: nothing.

    lane = sum over elements of mix(key(name) + (bits << 32) + index)   modulo 2^64

`bits` are those of the float32, `mix` is the bijection that ends splitmix64 (`data.draw`), and each lane has a key of
its own, half of the first 16 bytes of the name's SHA-256. Sums have no order, so it does not matter which rank adds
which elements. For one name, two different pairs of index and bits are two different words (up to 2^32 elements a
tensor), and mix maps no two words to one. So a change of one element always changes both lanes. Changes of several,
such as elements or tensors that changed places, are missed if their differences add up to 0 in both lanes, which has a
probability near 2^-128, as mix is close to a random function. Against somebody who makes such changes on purpose it
says nothing: that is what the SHA-256 of files is for, which no shard of another cut could compute.
"""

import hashlib
from collections.abc import Iterable
from typing import NamedTuple, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from data.compiled import compiled
from data.draw import mixed

_U = np.uint64
_0, _1, _32 = _U(0), _U(1), _U(32)
_WORD = (1 << 64) - 1


class Digest(NamedTuple):
    """Two numbers below 2^64; the sum of nothing by default."""

    first: int = 0
    second: int = 0

    @classmethod
    def of(cls, name: str, start: int, values: Tensor) -> Self:
        """The digest of some elements of a tensor, the first of which is number `start`; float32 on the host."""
        assert values.dtype == torch.float32, f"{name} is {values.dtype}"
        words = values.detach().contiguous().view(-1).numpy().view(np.uint32)
        key = hashlib.sha256(name.encode()).digest()
        keys = (_U(int.from_bytes(key[at : at + 8], "little")) for at in (0, 8))
        return cls(*map(int, compiled(_lanes, mixed)(words, _U(start), *keys)))

    @classmethod
    def total(cls, digests: Iterable["Digest"]) -> Self:
        """The digest of all that these are digests of."""
        first = second = 0
        for digest in digests:
            first, second = first + digest.first, second + digest.second
        return cls(first & _WORD, second & _WORD)

    def hexadecimal(self) -> str:
        """Both lanes, 32 digits."""
        return f"{self.first:016x}{self.second:016x}"


# Unsigned throughout: numba turns a mix of signed and unsigned into floats.
def _lanes(
    words: NDArray[np.uint32], start: np.uint64, first_key: np.uint64, second_key: np.uint64
) -> tuple[np.uint64, np.uint64]:
    first, second, index, count = _0, _0, _0, _U(len(words))
    while index < count:
        word = (_U(words[index]) << _32) + start + index
        first += mixed(word + first_key)
        second += mixed(word + second_key)
        index += _1
    return first, second
