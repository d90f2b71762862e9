"""The plan: which documents are in which bin, as a pure function of the corpora, the identity settings and the seed.

In: a sampler, lengths of its samples, settings, seed, a cursor. Out: `Bin`s, one after the other, without end. Kept:
only the plan of the current window, which can be made again from its number. World size, workers and restarts do not
change it.
"""

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace

import numpy as np
from numpy.typing import NDArray

from data import draw
from data.order.curriculum import stage_value
from data.order.packing import bucket, pack
from data.order.sampler import Sampler
from data.recipe.packing import PackingSettings

SPECIAL_TOKENS = 2
"""Number of special tokens of a whole protein: begin and end token."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cursor:
    """Where the bins continue: the whole state of the data side, and all that a checkpoint stores of it."""

    pass_index: int = 0
    """Number of the pass over the corpus, from 0; always 0 in a mixture, whose corpora have passes of their own."""
    window: int = 0
    """Number of the window in the pass, from 0."""
    bin: int = 0
    """Number of the next bin in the window, from 0; may equal the window's number of bins."""
    tokens_before_window: int = 0
    """Tokens of all bins of all windows before this one, pad tokens not counted."""

    def as_dict(self) -> dict[str, int]:
        """The fields by name."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Seen:
    """How much of a corpus a run has trained on."""

    proteins: int | None
    """Number of distinct sequences; None where there are too many to count quickly."""
    passes: float | None
    """Passes over the corpus, the last one in part; None in the first pass over a stream, whose end is not known."""


@dataclass(frozen=True, slots=True)
class Bin:
    """The documents of one bin, in slot order.

    A document is the slice ``[start, start + length)`` of a protein's tokens: begin token, residues, end token. So a
    crop has a begin or end token exactly if the true terminus lies inside it.
    """

    samples: NDArray[np.int64]
    """(documents,) sample ids (`sampler.CORPUS_BITS`)."""
    passes: NDArray[np.int64]
    """(documents,) pass of each sample's corpus, which keys its mask."""
    starts: NDArray[np.int64]
    """(documents,) first token of the slice."""
    lengths: NDArray[np.int64]
    """(documents,) number of tokens of the slice."""
    tokens_before_window: int
    """The same as in `Cursor`; it decides the stage of masking."""

    @property
    def num_tokens(self) -> int:
        """Number of tokens in the bin, pad tokens not counted."""
        return int(self.lengths.sum())


class Plan:
    """The endless stream of bins.

    Args:
        sampler: gives the samples of a window.
        num_residues: returns the number of residues of each sample id.
        settings: sizes of crop, bin and window, curriculum and composition.
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

    def window(self, pass_index: int, window: int, tokens_before: int) -> list[Bin] | None:
        """All bins of one window, in the order in which they are trained; None after the last window of the pass.

        Args:
            pass_index: as in `Cursor`.
            window: as in `Cursor`.
            tokens_before: `tokens_before_window` of a `Cursor`, which decides the stage of the curriculum.
        """
        items = self.sampler.window(pass_index, window)
        if items is None:
            return None
        settings = self.settings
        starts, lengths = crop(
            *items,
            self.num_residues(items.samples),
            stage_value(settings.curriculum, settings.crop_tokens, tokens_before),
            self.seed,
        )
        compose = pack if settings.composition == "packed" else bucket
        groups = compose(lengths, settings.bin_tokens, settings.documents_per_bin)
        shuffled = np.argsort(
            draw.hashes(draw.key(self.seed, draw.BIN_ORDER, pass_index, window), np.arange(groups.num_bins)),
            kind="stable",
        )
        by_bin = groups.members
        samples, passes, starts, lengths = items.samples[by_bin], items.passes[by_bin], starts[by_bin], lengths[by_bin]
        bounds = groups.first.tolist()
        of_bins = (slice(bounds[b], bounds[b + 1]) for b in shuffled.tolist())
        return [Bin(samples[of], passes[of], starts[of], lengths[of], tokens_before) for of in of_bins]

    def bins(self, cursor: Cursor) -> Iterator[tuple[Bin, Cursor]]:
        """The bins from `cursor` on, each with the cursor after it; endless, across windows and passes."""
        while True:
            bins = self.window(cursor.pass_index, cursor.window, cursor.tokens_before_window)
            if bins is None:
                if not cursor.window:
                    raise ValueError("the corpus holds no sequence to train on; check data.sources and the split")
                cursor = Cursor(pass_index=cursor.pass_index + 1, tokens_before_window=cursor.tokens_before_window)
                continue
            for index in range(cursor.bin, len(bins)):
                cursor = replace(cursor, bin=index + 1)
                yield bins[index], cursor
            cursor = following(cursor, bins)


def following(cursor: Cursor, bins: list[Bin]) -> Cursor:
    """The beginning of the window after the one at `cursor`, which holds `bins`."""
    tokens = cursor.tokens_before_window + sum(b.num_tokens for b in bins)
    return Cursor(pass_index=cursor.pass_index, window=cursor.window + 1, tokens_before_window=tokens)


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
    for pass_index in np.unique(passes).tolist():
        cut = np.flatnonzero((passes == pass_index) & (total > lengths))
        drawn = draw.hashes(draw.key(seed, draw.CROP, pass_index), samples[cut])
        starts[cut] = draw.integers(drawn, (total - lengths + 1)[cut])
    return starts, lengths
