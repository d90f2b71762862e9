"""The plan: which documents stand in which bin, as a pure function of the corpus, the identity settings and the seed.

In: lengths of the samples, settings, seed, a cursor. Out: `Bin`s, one after the other, without end. Kept: nothing but
the plan of the window at hand, which is rebuilt from its number. World size, workers and restarts have no part in it.
"""

from bisect import bisect_left, insort
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace

import numpy as np
from numpy.typing import NDArray

from data import draw
from data.order import Permutation
from data.settings import DataSettings

SPECIAL_TOKENS = 2
"""Begin and end token that every whole protein carries."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cursor:
    """Where the bin stream goes on: the whole state of the data side, and all a checkpoint stores of it."""

    pass_index: int = 0
    """Pass over the corpus, from 0."""
    window: int = 0
    """Window of the pass, from 0."""
    bin: int = 0
    """Next bin of the window, from 0; may equal the window's number of bins."""
    tokens_before_window: int = 0
    """Real tokens of all bins of all windows before this one."""

    def as_dict(self) -> dict[str, int]:
        """The fields by name."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Bin:
    """The documents of one bin, in slot order.

    A document is the slice ``[start, start + length)`` of a protein's token string: begin token, residues, end token.
    So a crop carries a begin or end token exactly where the true terminus lies inside it.
    """

    pass_index: int
    samples: NDArray[np.int64]
    """(documents,) ids of the records in the store."""
    starts: NDArray[np.int64]
    """(documents,) first token of the slice."""
    lengths: NDArray[np.int64]
    """(documents,) tokens of the slice."""

    @property
    def num_tokens(self) -> int:
        """Real tokens in the bin."""
        return int(self.lengths.sum())


class Plan:
    """The endless stream of bins over one corpus.

    Args:
        samples: (n,) ids of the store's records that take part.
        num_residues: (n,) residues of each of them.
        settings: sizes of crop, bin and window.
        seed: seed of the run.
    """

    def __init__(
        self,
        samples: NDArray[np.int64],
        num_residues: NDArray[np.int64],
        settings: DataSettings,
        seed: int,
    ) -> None:
        self.samples = samples
        self.num_residues = num_residues
        self.settings = settings
        self.seed = seed
        self.num_windows = -(-len(samples) // settings.window_sequences)

    def window(self, pass_index: int, window: int) -> list[Bin]:
        """All bins of one window, in the order in which they are trained."""
        size = self.settings.window_sequences
        positions = np.arange(window * size, min((window + 1) * size, len(self.samples)))
        chosen = Permutation(len(self.samples), draw.key(self.seed, draw.ORDER, pass_index))(positions)
        samples = self.samples[chosen]
        starts, lengths = crop(
            samples,
            self.num_residues[chosen],
            self.settings.crop_tokens,
            draw.key(self.seed, draw.CROP, pass_index),
        )
        groups = pack(lengths, self.settings.bin_tokens, self.settings.documents_per_bin)
        shuffled = np.argsort(
            draw.hashes(draw.key(self.seed, draw.BIN_ORDER, pass_index, window), np.arange(len(groups))),
            kind="stable",
        )
        return [
            Bin(pass_index, samples[members], starts[members], lengths[members])
            for members in (groups[i] for i in shuffled)
        ]

    def bins(self, cursor: Cursor) -> Iterator[tuple[Bin, Cursor]]:
        """The bins from `cursor` on, each with the cursor behind it; endless, across windows and passes."""
        while True:
            bins = self.window(cursor.pass_index, cursor.window)
            for index in range(cursor.bin, len(bins)):
                cursor = replace(cursor, bin=index + 1)
                yield bins[index], cursor
            last = cursor.window + 1 == self.num_windows
            cursor = Cursor(
                pass_index=cursor.pass_index + last,
                window=0 if last else cursor.window + 1,
                tokens_before_window=cursor.tokens_before_window + sum(b.num_tokens for b in bins),
            )


def crop(
    samples: NDArray[np.int64], num_residues: NDArray[np.int64], crop_tokens: int, key: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Start and length in tokens of each sample's document: whole where it fits, else a slice at a keyed start."""
    total = num_residues + SPECIAL_TOKENS
    lengths = np.minimum(total, crop_tokens)
    starts = draw.integers(draw.hashes(key, samples), total - lengths + 1)
    return starts, lengths


def pack(lengths: NDArray[np.int64], bin_tokens: int, documents_per_bin: int) -> list[NDArray[np.int64]]:
    """Best fit in order of arrival: each document goes to the fullest open bin that still holds it, else opens one.

    Without the usual sort by length no bin is all long or all short, and the waste stays that of the sorted variant
    once a window holds many times more documents than a bin.

    Returns:
        Per bin the indices into `lengths`, in order of arrival.
    """
    shortest = int(lengths.min())
    bins: list[list[int]] = []
    open_bins: list[tuple[int, int]] = []  # (room, bin), sorted: the first that fits is the best fit
    for index, length in enumerate(lengths.tolist()):
        at = bisect_left(open_bins, (length, -1))
        if at < len(open_bins):
            room, chosen = open_bins.pop(at)
        else:
            room, chosen = bin_tokens, len(bins)
            bins.append([])
        bins[chosen].append(index)
        if room - length >= shortest and len(bins[chosen]) < documents_per_bin:
            insort(open_bins, (room - length, chosen))
    return [np.array(members, np.int64) for members in bins]
