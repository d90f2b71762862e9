"""The plan: which documents are in which bin, as a pure function of the corpora, the identity settings and the seed.

In: a sampler, lengths of its samples, settings, seed, a cursor. Out: `Bin`s, one after the other, without end; the
sample chain, one hash that proves which bins, in which order, trained a model. Kept: only the plan of the current
window, which can be made again from its number. World size, workers and restarts do not change it. The value of a
setting that has stages depends on the tokens seen so far, and on nothing else.
"""

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from data.order.packing import pack
from data.order.sampler import Sampler, WindowSamples
from data.order.settings import PackingSettings
from zymogen import keyed_random


def stage_value(stages: Sequence[tuple[int, int]], final: int, tokens_seen: int) -> int:
    """The value of the first stage that has not ended at `tokens_seen`; `final` once all have.

    Args:
        stages: (tokens at which the stage ends, value), by rising end.
        final: value after the last stage.
        tokens_seen: tokens of all earlier bins, pad tokens not counted.
    """
    return next((value for end, value in stages if tokens_seen < end), final)


def stage_end(stages: Sequence[tuple[int, int]], tokens_seen: int) -> int | None:
    """The tokens at which the stage of `stage_value` ends; None for the last value, which holds without end."""
    return next((end for end, _ in stages if tokens_seen < end), None)


SPECIAL_TOKENS = 2
"""Number of special tokens of a whole protein: begin and end token."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cursor:
    """Where the bins continue: the whole state of the data side, and all that a checkpoint stores of it."""

    epoch: int = 0
    """Number of the epoch, from 0; always 0 in a mixture, whose corpora have epochs of their own."""
    window: int = 0
    """Number of the window in the epoch, from 0."""
    bin: int = 0
    """Number of the next bin in the window, from 0; may equal the window's number of bins."""
    tokens_before_window: int = 0
    """Tokens of all bins of all windows before this one, pad tokens not counted."""


@dataclass(frozen=True, slots=True)
class CorpusProgress:
    """How much of a corpus a run has trained on."""

    proteins: int | None
    """Number of distinct sequences; None where there are too many to count quickly."""
    passes: float | None
    """Passes over the corpus, the last one in part; None in the first pass over a stream, whose end is not known."""


class Bin(NamedTuple):
    """The documents of one bin, in slot order; or, before they are packed, all those of a stage, in order of arrival.

    A document is the slice ``[start, start + length)`` of a protein's tokens: begin token, residues, end token. So a
    crop has a begin or end token exactly if the true terminus lies inside it.
    """

    samples: NDArray[np.int64]
    """(documents,) sample ids (`sampler.CORPUS_BITS`)."""
    epochs: NDArray[np.int64]
    """(documents,) epoch of each sample's corpus, which keys its mask."""
    starts: NDArray[np.int64]
    """(documents,) first token of the slice."""
    lengths: NDArray[np.int64]
    """(documents,) number of tokens of the slice."""

    @property
    def num_tokens(self) -> int:
        """Number of their tokens, pad tokens not counted."""
        return int(self.lengths.sum())


class Plan:
    """The endless stream of bins.

    Args:
        sampler: gives the samples of a window.
        num_residues: returns the number of residues of each sample id.
        settings: sizes of crop, bin and window, and curriculum.
        seed: seed of the run.
    """

    def __init__(
        self,
        sampler: Sampler,
        num_residues: Callable[[NDArray[np.int64]], NDArray[np.int64]],
        settings: PackingSettings,
        seed: int,
    ) -> None:
        self.sampler = sampler
        self.num_residues = num_residues
        self.settings = settings
        self.seed = seed

    def window(self, epoch: int, window: int, tokens_before: int) -> list[Bin] | None:
        """All bins of one window, in the order in which they are trained; None after the last window of the epoch.

        Args:
            epoch: as in `Cursor`.
            window: as in `Cursor`.
            tokens_before: `tokens_before_window` of a `Cursor`, which decides the stage of the curriculum.
        """
        items = self.sampler.window(epoch, window)
        if items is None:
            return None
        residues = self.num_residues(items.samples)
        key = keyed_random.key(self.seed, keyed_random.BIN_ORDER, epoch, window)
        if not self.sampler.is_below_a_window:
            crop_tokens = stage_value(self.settings.curriculum, self.settings.crop_tokens, tokens_before)
            documents = Bin(*items, *crop(*items, residues, crop_tokens, self.seed))
            return [*self._composed(documents, key, 0)]
        bins: list[Bin] = []
        for documents in self._stages(items, residues, tokens_before):
            bins += self._composed(documents, key, len(bins))
        return bins

    def _stages(self, items: WindowSamples, residues: NDArray[np.int64], tokens_before: int) -> Iterator[Bin]:
        """The documents of a window in order of arrival, cut where stages of the curriculum end."""
        curriculum, first = self.settings.curriculum, 0
        while first < len(residues):
            crop_tokens = stage_value(curriculum, self.settings.crop_tokens, tokens_before)
            left = WindowSamples(items.samples[first:], items.epochs[first:])
            starts, lengths = crop(*left, residues[first:], crop_tokens, self.seed)
            tokens, count = np.cumsum(lengths), len(lengths)
            if (end := stage_end(curriculum, tokens_before)) is not None:
                # Up to the document in which the stage reaches its end.
                count = min(count, int(np.searchsorted(tokens, end - tokens_before)) + 1)
            yield Bin(left.samples[:count], left.epochs[:count], starts[:count], lengths[:count])
            first, tokens_before = first + count, tokens_before + int(tokens[count - 1])

    def _composed(self, documents: Bin, key: int, first_bin: int) -> Iterator[Bin]:
        """The documents of each bin, in the order in which the bins are trained.

        Args:
            documents: what is put into bins, in order of arrival.
            key: of the order of the window's bins.
            first_bin: number of the window's bins that were composed before these.
        """
        settings = self.settings
        groups = pack(documents.lengths, settings.bin_tokens, settings.documents_per_bin)
        numbers = np.arange(first_bin, first_bin + groups.num_bins)
        shuffled = np.argsort(keyed_random.hashes(key, numbers), kind="stable")
        by_bin = Bin(*(of_each[groups.members] for of_each in documents))
        bounds = groups.first.tolist()
        for bin_ in shuffled.tolist():
            of = slice(bounds[bin_], bounds[bin_ + 1])
            yield Bin(*(of_each[of] for of_each in by_bin))

    def bins(self, cursor: Cursor) -> Iterator[tuple[Bin, Cursor]]:
        """The bins from `cursor` on, each with the cursor after it; endless, across windows and passes."""
        while True:
            bins = self.window(cursor.epoch, cursor.window, cursor.tokens_before_window)
            if bins is None:
                if not cursor.window:
                    raise ValueError("the corpus holds no sequence to train on; check data.sources and the split")
                cursor = Cursor(epoch=cursor.epoch + 1, tokens_before_window=cursor.tokens_before_window)
                continue
            for index in range(cursor.bin, len(bins)):
                cursor = replace(cursor, bin=index + 1)
                yield bins[index], cursor
            cursor = next_cursor(cursor, bins)


def next_cursor(cursor: Cursor, bins: list[Bin]) -> Cursor:
    """The beginning of the window after the one at `cursor`, which holds `bins`."""
    tokens = cursor.tokens_before_window + sum(b.num_tokens for b in bins)
    return Cursor(epoch=cursor.epoch, window=cursor.window + 1, tokens_before_window=tokens)


def crop(
    samples: NDArray[np.int64],
    passes: NDArray[np.int64],
    num_residues: NDArray[np.int64],
    crop_tokens: int,
    seed: int,
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Start and length in tokens of each sample's document: the whole protein if it fits, else a keyed slice of it."""
    total = num_residues + SPECIAL_TOKENS
    lengths = np.minimum(total, crop_tokens)
    starts = np.zeros(len(samples), np.int64)
    for epoch in np.unique(passes).tolist():
        cut = np.flatnonzero((passes == epoch) & (total > lengths))
        drawn = keyed_random.hashes(keyed_random.key(seed, keyed_random.CROP, epoch), samples[cut])
        starts[cut] = keyed_random.integers(drawn, (total - lengths + 1)[cut])
    return starts, lengths


EMPTY_CHAIN = "0" * 64
"""The chain before the first step."""


def extend_chain(chain: str, digests: Sequence[int]) -> str:
    """The chain after one more step.

    Args:
        chain: the chain before the step, 64 hex digits.
        digests: the 64-bit digest of each bin of the step (`Batch.digests`), in global bin order.
    """
    content = hashlib.blake2b(bytes.fromhex(chain), digest_size=32)
    for digest in digests:
        content.update((digest & (1 << 64) - 1).to_bytes(8, "little"))
    return content.hexdigest()
