"""Samplers: which records are in a window, by arithmetic on its number.

In: seed, pass, window. Out: `WindowSamples`. Kept: nothing.

One corpus is drawn in passes: a permutation of its records, or of its clusters with one member each, cut into windows.
A mixture has no passes of its own: each window takes from each corpus the share that its weight gives, and each corpus
is drawn in its own passes. Held-out records keep their places in the permutation and are left out of the window, so
that no list of training records is needed.

A permutation takes O(1) memory: a Feistel network permutes the numbers below the smallest sufficient power of two. A
result that is not below the number of items is permuted again until it is (Black and Rogaway 2002,
doi:10.1007/3-540-45760-7_9), so the map stays a bijection.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from zymogen import keyed_random

CORPUS_BITS = 40
"""A sample id is ``corpus << 40 | record``: the records of one corpus keep their numbers."""


class WindowSamples(NamedTuple):
    """The samples of a window that train, in order of arrival."""

    samples: NDArray[np.int64]
    """(n,) sample ids."""
    epochs: NDArray[np.int64]
    """(n,) epoch of the sample's own corpus."""


class SampleSource(Protocol):
    """One corpus, from which items (records, or clusters) are drawn."""

    def size(self, wanted: int) -> int:
        """Number of items; a growing corpus waits until it has `wanted`, or all if these are fewer."""

    def records(self, items: NDArray[np.int64], key: int) -> NDArray[np.int64]:
        """The record of each item, -1 for one that does not train; `key` depends on seed and pass."""

    def in_order(self, epoch: int) -> bool:
        """Whether this pass takes the items in the order of their numbers, not permuted."""


class Sampler(Protocol):
    """The windows of a run."""

    def window(self, epoch: int, window: int) -> WindowSamples | None:
        """The samples of a window; None after the last window of the epoch."""

    @property
    def is_below_a_window(self) -> bool:
        """Whether all records together are fewer than one window holds."""

    def share_of_first_window(self) -> float | None:
        """Share of a pass that its first window has, in (0, 1]; None where that is not known or there is no pass."""


@dataclass(frozen=True, slots=True)
class Epochs:
    """The windows of one corpus, pass after pass."""

    corpus: SampleSource
    seed: int
    window_sequences: int

    def window(self, epoch: int, window: int) -> WindowSamples | None:
        """The samples of a window; None after the last window of the epoch."""
        start, stop = window * self.window_sequences, (window + 1) * self.window_sequences
        stop = min(stop, self.corpus.size(stop))
        if start >= stop:
            return None
        return _drawn(self.corpus, 0, self.seed, epoch, np.arange(start, stop))

    @property
    def is_below_a_window(self) -> bool:
        """Whether the first window is the only one, and not full; waits for no more of a stream than that window."""
        return self.corpus.size(self.window_sequences) < self.window_sequences

    def share_of_first_window(self) -> float | None:
        """Share of the corpus; None of a stream, whose first pass takes records as they arrive."""
        if self.corpus.in_order(0):
            return None
        return min(1.0, self.window_sequences / max(1, self.corpus.size(1 << CORPUS_BITS)))


@dataclass(frozen=True, slots=True)
class Mixture:
    """The windows of several corpora by weight, without end.

    Raises:
        ValueError: a weight gives less than two sequences in a window.
    """

    corpora: Sequence[SampleSource]
    weights: Sequence[int]
    seed: int
    window_sequences: int

    def __post_init__(self) -> None:
        total = sum(self.weights)
        for weight in self.weights:
            if weight * self.window_sequences < 2 * total:
                raise ValueError(
                    f"data.mixture: weight {weight} of {total} is less than two sequences in a window of "
                    f"{self.window_sequences}; raise it, or data.window_sequences"
                )

    def window(self, epoch: int, window: int) -> WindowSamples | None:
        """The samples of a window. There is one endless pass, so `epoch` is 0."""
        parts = []
        for number, corpus in enumerate(self.corpora):
            positions = np.arange(self._before(number, window), self._before(number, window + 1))
            size = corpus.size(1 << CORPUS_BITS)
            passes, items = positions // size, positions % size
            for of_corpus in np.unique(passes).tolist():
                parts.append(_drawn(corpus, number, self.seed, of_corpus, items[passes == of_corpus]))
        samples, passes = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
        arrival = keyed_random.hashes(
            keyed_random.key(self.seed, keyed_random.ARRIVAL, window), np.arange(len(samples))
        )
        shuffled = np.argsort(arrival, kind="stable")
        return WindowSamples(samples[shuffled], passes[shuffled])

    @property
    def is_below_a_window(self) -> bool:
        """Whether the corpora together have fewer records than a window has places, so that it holds several passes."""
        return sum(corpus.size(1 << CORPUS_BITS) for corpus in self.corpora) < self.window_sequences

    def share_of_first_window(self) -> float | None:
        """None: the corpora have passes of their own."""
        return None

    def _before(self, number: int, window: int) -> int:
        """Number of items that corpus `number` gave before `window`; windows are full, and shares become exact.

        It is the rounded share of the corpora up to this one minus that of the corpora before it. Rounding takes less
        than one from each, and a window adds at least two to their difference, so it always rises.
        """
        drawn, total = window * self.window_sequences, sum(self.weights)
        upto = drawn * sum(self.weights[: number + 1]) // total
        return upto - drawn * sum(self.weights[:number]) // total


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


def _drawn(corpus: SampleSource, number: int, seed: int, epoch: int, positions: NDArray[np.int64]) -> WindowSamples:
    # The first corpus has the same keys as without a mixture: a mixture of one corpus gives the same order.
    order = (
        keyed_random.key(seed, keyed_random.ORDER, epoch)
        if not number
        else keyed_random.key(seed, keyed_random.ORDER, epoch, number)
    )
    items = positions
    if not corpus.in_order(epoch):
        items = Permutation(corpus.size(1 << CORPUS_BITS), order)(positions)
    records = corpus.records(items, keyed_random.key(seed, keyed_random.MEMBER, epoch, number))
    records = records[records >= 0]
    return WindowSamples(records | (number << CORPUS_BITS), np.full(len(records), epoch, np.int64))
