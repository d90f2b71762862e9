"""Keyed draws: every random number is an integer hash of its purpose, so no generator has a state to save.

In: integers that identify a draw (seed, pass, sample id, position). Out: ``uint64`` hashes. Nothing is kept.

The hash is the output function of splitmix64 (Steele, Lea and Flood, 2014, doi:10.1145/2714064.2660195) applied to
``key + (counter + 1) * golden``, so `hashes(key, 0..n)` is splitmix64's own stream from the state `key`. All arithmetic
is on integers, so the result is the same on every machine.
"""

from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

_GOLDEN = 0x9E3779B97F4A7C15
GOLDEN, _MIX_1, _MIX_2 = (np.uint64(value) for value in (_GOLDEN, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB))
Words = TypeVar("Words", np.uint64, NDArray[np.uint64])
_27, _30, _31 = np.uint64(27), np.uint64(30), np.uint64(31)
_WORD = (1 << 64) - 1

# The purposes of keys. Two uses of one (seed, pass, id) must not share a hash: a crop would then determine its masks.
ORDER, CROP, BIN_ORDER, SELECT, REPLACE, MODEL, INITIAL, MEMBER, ARRIVAL = range(1, 10)


def key(*parts: int) -> int:
    """One 64-bit key from integers; order matters, and each part may have any size or sign."""
    state = 0
    for part in parts:
        state = _mix((state ^ (part & _WORD)) + _GOLDEN)
    return state


def _mix(value: int) -> int:
    value &= _WORD
    value = ((value ^ (value >> 30)) * int(_MIX_1)) & _WORD
    value = ((value ^ (value >> 27)) * int(_MIX_2)) & _WORD
    return value ^ (value >> 31)


def mixed(values: Words) -> Words:
    """splitmix64's output function of each ``uint64`` of an array; compiled kernels call it with a single value."""
    values = (values ^ (values >> _30)) * _MIX_1
    values = (values ^ (values >> _27)) * _MIX_2
    return values ^ (values >> _31)


def hashes(keys: int | NDArray[np.uint64], counters: NDArray[np.integer]) -> NDArray[np.uint64]:
    """Hash of each counter under its key.

    Args:
        keys: one key, or an array that broadcasts against `counters`.
        counters: integers of any shape.

    Returns:
        ``uint64`` of the broadcast shape.
    """
    with np.errstate(over="ignore"):  # the arithmetic is modulo 2**64
        return mixed((counters.astype(np.uint64) + np.uint64(1)) * GOLDEN + np.asarray(keys, np.uint64))


def threshold(probability: float) -> int:
    """The integer t for which ``hash < t`` holds with `probability`; 2**64 for 1.0, which does not fit a uint64."""
    return round(probability * 2.0**64)


def below(values: NDArray[np.uint64], probability: float) -> NDArray[np.bool_]:
    """Whether each hash lies in the lowest `probability` of the range; exact at 0 and 1."""
    limit = threshold(probability)
    if limit >= 1 << 64:
        return np.ones(values.shape, np.bool_)
    return values < np.uint64(limit)


def integers(values: NDArray[np.uint64], bounds: int | NDArray[np.integer]) -> NDArray[np.int64]:
    """Each hash scaled to ``[0, bound)`` by its upper 32 bits; the bias is below 2**-32 times the bound.

    Args:
        values: hashes.
        bounds: one bound, or an array that broadcasts against `values`; each in 1..2**31.
    """
    high = values >> np.uint64(32)
    return ((high * np.asarray(bounds).astype(np.uint64)) >> np.uint64(32)).astype(np.int64)
