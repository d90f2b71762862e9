"""Packing: which documents share a bin.

In: the documents' lengths in order of arrival. Out: `BinMembers`. Kept: nothing.

It is best fit in order of arrival: each document goes to the fullest open bin that has room for it, or opens a new bin.
Documents are not sorted by length, so that long and short ones are mixed in each bin; if a window has many times more
documents than a bin, no more slots are wasted than with sorting.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from zymogen.compiled import compiled, trailing_zeros


class BinMembers(NamedTuple):
    """Documents by bin: those of bin b are ``members[first[b] : first[b + 1]]``."""

    members: NDArray[np.int64]
    """(documents,) indices of the documents, one bin after the other."""
    first: NDArray[np.int64]
    """(bins + 1,) where each bin starts in `members`."""

    @property
    def num_bins(self) -> int:
        """Number of bins."""
        return len(self.first) - 1

    def bins(self) -> list[NDArray[np.int64]]:
        """The documents of each bin."""
        return np.split(self.members, self.first[1:-1])


def pack(lengths: NDArray[np.int64], bin_tokens: int, documents_per_bin: int) -> BinMembers:
    """Best fit in order of arrival; among equally full bins, the one that was filled last.

    Args:
        lengths: (documents,) tokens of each, in 1..`bin_tokens`.
        bin_tokens: slots of a bin.
        documents_per_bin: the most documents that a bin may hold.

    Returns:
        Bins in the order in which they were opened, documents inside in order of arrival.
    """
    if not len(lengths):
        return BinMembers(np.empty(0, np.int64), np.zeros(1, np.int64))
    chosen, num_bins = compiled(_best_fit)(lengths, bin_tokens, documents_per_bin, int(lengths.min()))
    return BinMembers(
        np.argsort(chosen.astype(np.uint16) if num_bins < 1 << 16 else chosen, kind="stable"),
        np.concatenate([[0], np.cumsum(np.bincount(chosen, minlength=num_bins))]),
    )


def _best_fit(
    lengths: NDArray[np.int64], bin_tokens: int, documents_per_bin: int, shortest: int
) -> tuple[NDArray[np.int64], int]:
    """The bin of each document, and how many bins there are; a bin with less room than `shortest` takes no more.

    Open bins are on a stack for each room that is left, and a tree of bits finds the first room that is large enough:
    bit r of `rooms` is set if the stack of room r has a bin, bit w of `summary` if word w of `rooms` is not zero.
    """
    num_words = bin_tokens // 64 + 1
    rooms = np.zeros(num_words, np.uint64)
    summary = np.zeros(num_words // 64 + 1, np.uint64)
    top = np.full(bin_tokens + 1, -1, np.int64)
    below = np.empty(len(lengths), np.int64)  # the bin under this one on its stack
    held = np.zeros(len(lengths), np.int64)
    chosen = np.empty(len(lengths), np.int64)
    num_bins = 0
    one = np.uint64(1)
    for index in range(len(lengths)):
        length = lengths[index]
        word = length >> 6
        found = rooms[word] & ~((one << np.uint64(length & 63)) - one)
        if found == 0:
            block = (word + 1) >> 6
            words = summary[block] & ~((one << np.uint64((word + 1) & 63)) - one) if block < len(summary) else found
            while words == 0 and block + 1 < len(summary):
                block += 1
                words = summary[block]
            if words != 0:
                word = (block << 6) + np.int64(trailing_zeros(words))
                found = rooms[word]
        if found != 0:
            bit = trailing_zeros(found)
            room = (word << 6) + np.int64(bit)
            target = top[room]
            top[room] = below[target]
            if top[room] < 0:
                rooms[word] ^= one << np.uint64(bit)
                if rooms[word] == 0:
                    summary[word >> 6] ^= one << np.uint64(word & 63)
        else:
            room = bin_tokens
            target = num_bins
            num_bins += 1
        chosen[index] = target
        held[target] += 1
        room -= length
        if room >= shortest and held[target] < documents_per_bin:
            below[target] = top[room]
            top[room] = target
            rooms[room >> 6] |= one << np.uint64(room & 63)
            summary[room >> 12] |= one << np.uint64((room >> 6) & 63)
    return chosen, num_bins
