"""Content digests: 64 bits that identify a sequence, so that equal sequences are found without comparing them.

In: token ids of many records, concatenated. Out: one ``uint64`` for each. Nothing is kept.

    digest = mix(sum over i of T[id_i] * P**(i + 1)  +  length * K   modulo 2**64)

T holds a keyed draw for every token id, P and K are odd, and mix is the bijection that ends splitmix64 (`data.draw`).
P is odd and no two entries of T are equal, so a change of one residue always changes the digest; two unrelated proteins
share one with a probability near 2**-64. It is not a cryptographic hash: collisions can be made on purpose.
"""

import numpy as np
from numpy.typing import NDArray

from data.compiled import compiled
from data.draw import hashes, mixed

_KEY = 0x636F6E74656E74
_TABLE = hashes(_KEY, np.arange(256))
_BASE = 0xA0761D6478BD642F
_LENGTH_WEIGHT = 0xE7037ED1A0B428DB
_SPAN = 1 << 16
"""Tokens that NumPy sums at a time, so that the table of powers stays in the cache."""

_U = np.uint64
_P1, _P2, _P3, _P4, _P5, _P6, _P7, _P8 = (_U(pow(_BASE, power, 1 << 64)) for power in range(1, 9))
_K = _U(_LENGTH_WEIGHT)
# Unsigned indices: numba checks whether signed ones are negative, which takes a third of the time here.
_0, _1, _2, _3, _4, _5, _6, _7, _8 = (_U(number) for number in range(9))


def content_digests(tokens: NDArray[np.uint8], lengths: NDArray[np.int64]) -> NDArray[np.uint64]:
    """The digest of each record.

    Args:
        tokens: (residues,) token ids of all records, concatenated.
        lengths: (records,) number of residues of each; 0 is allowed.

    Returns:
        (records,) ``uint64``, the same with and without compiled kernels.
    """
    assert int(lengths.sum()) == len(tokens), (int(lengths.sum()), len(tokens))
    kernel = compiled(_digests, mixed)
    if kernel is None:
        return mixed(_sums(tokens, lengths) + lengths.astype(np.uint64) * _K)
    digests = np.empty(len(lengths), np.uint64)
    kernel(np.ascontiguousarray(tokens), lengths, _TABLE, digests)
    return digests


def _digests(
    tokens: NDArray[np.uint8], lengths: NDArray[np.int64], table: NDArray[np.uint64], digests: NDArray[np.uint64]
) -> None:
    i = _0
    for record in range(len(lengths)):
        length = _U(lengths[record])
        end = i + length
        total = length * _K
        weight = _1
        while i + _8 <= end:
            # Eight terms with fixed powers at a time: a chain of multiplications would wait for each other.
            total += weight * (
                table[tokens[i]] * _P1
                + table[tokens[i + _1]] * _P2
                + table[tokens[i + _2]] * _P3
                + table[tokens[i + _3]] * _P4
                + table[tokens[i + _4]] * _P5
                + table[tokens[i + _5]] * _P6
                + table[tokens[i + _6]] * _P7
                + table[tokens[i + _7]] * _P8
            )
            weight *= _P8
            i += _8
        while i < end:
            weight *= _P1
            total += table[tokens[i]] * weight
            i += _1
        digests[record] = mixed(total)


def _sums(tokens: NDArray[np.uint8], lengths: NDArray[np.int64]) -> NDArray[np.uint64]:
    """(records,) sum of T[id_i] * P**(i + 1).

    Powers are counted from the beginning of a span; as P is odd it has an inverse, which shifts each sum to its record.
    """
    sums = np.zeros(len(lengths), np.uint64)
    ends = np.cumsum(lengths)
    starts = ends - lengths
    powers = _powers(_BASE, _SPAN)
    inverses = _powers(pow(_BASE, -1, 1 << 64), _SPAN)
    for begin in range(0, len(tokens), _SPAN):
        end = min(begin + _SPAN, len(tokens))
        first, last = np.searchsorted(ends, begin, "right"), np.searchsorted(starts, end, "left")
        inside = first + np.flatnonzero(lengths[first:last])
        terms = _TABLE[tokens[begin:end]] * powers[: end - begin]
        cuts = np.maximum(starts[inside], begin) - begin
        parts = np.add.reduceat(terms, cuts)
        # All records except the first begin inside this span; the first may have begun many spans before.
        shift = inverses[cuts]
        shift[0] = _U(pow(_BASE, int(begin - starts[inside[0]]), 1 << 64)) if cuts[0] == 0 else shift[0]
        sums[inside] += parts * _U(_BASE) * shift
    return sums


def _powers(base: int, count: int) -> NDArray[np.uint64]:
    """(count,) base**0, base**1, ... modulo 2**64."""
    factors = np.full(count, base, np.uint64)
    factors[0] = 1
    return np.cumprod(factors)
