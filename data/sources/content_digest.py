"""Content digests: 64 bits that identify a sequence, so that equal sequences are found without comparing them.

In: token ids of many records, concatenated. Out: one ``uint64`` for each. Nothing is kept.

    digest = mix(sum over i of T[id_i] * P**(i + 1)  +  length * K   modulo 2**64)

T holds a keyed draw for every token id, P and K are odd, and mix is the bijection that ends splitmix64
(`zymogen.keyed_random`).
P is odd and no two entries of T are equal, so a change of one residue always changes the digest; two unrelated proteins
share one with a probability near 2**-64. It is not a cryptographic hash: collisions can be made on purpose.
"""

import numpy as np
from numpy.typing import NDArray

from zymogen.compiled import compiled
from zymogen.keyed_random import hashes, mixed

_KEY = 0x636F6E74656E74
_TABLE = hashes(_KEY, np.arange(256))
_BASE = 0xA0761D6478BD642F
_LENGTH_WEIGHT = 0xE7037ED1A0B428DB

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
        (records,) ``uint64``.
    """
    assert int(lengths.sum()) == len(tokens), (int(lengths.sum()), len(tokens))
    digests = np.empty(len(lengths), np.uint64)
    compiled(_digests, mixed)(np.ascontiguousarray(tokens), lengths, _TABLE, digests)
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
