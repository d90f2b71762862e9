"""Documents for a trained model: packed into bins, and read one bin at a time.

In: documents in the order of the caller, their residues or token ids. Out: `PackedDocuments`, one forward pass each,
with the documents' places in that order. Kept: nothing; memory holds one bin, and a few numbers for each document.

Embedding, scoring, evaluating and predicting read through this module alone. Which documents share a bin follows from
their lengths and from the size of a bin, so that results do not depend on how many processes share the bins.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from data.alphabet import CLS, EOS, LETTER_IDS, REFUSED, UNK
from data.batches.batch import Batch
from data.batches.collate import FilledBin, collate, fill_bin
from data.batches.contents import Contents
from data.order.packing import BinMembers, pack
from data.order.plan import Bin
from data.order.settings import BIN_TOKENS, BinSettings

STEP = 256
"""Slots of a bin of more than four times as many are a multiple of this."""


class BinSize(NamedTuple):
    """Sizes of a bin outside of a recipe (a `data.order.settings.BinSettings`)."""

    bin_tokens: int
    documents_per_bin: int

    @classmethod
    def holding(cls, lengths: NDArray[np.int64], bin_tokens: int = BIN_TOKENS) -> "BinSize":
        """Bins of `bin_tokens`, or of the longest of some documents, whose `lengths` are ``(documents,)`` tokens.

        A bin may hold a document for 4 slots.
        """
        slots = max(bin_tokens, int(lengths.max(initial=1)))
        return cls(slots, max(1, slots // 4))


def token_ids(letters: str) -> NDArray[np.uint8]:
    """(residues + 2,) token ids of a protein with its begin and end token; letters that are no amino acids are <unk>.

    Raises:
        ValueError: a letter is not ASCII (a UnicodeEncodeError, which names it).
    """
    ids = LETTER_IDS[np.frombuffer(letters.encode("ascii"), np.uint8)]
    return np.concatenate([[CLS], np.where(ids == REFUSED, UNK, ids), [EOS]]).astype(np.uint8)


class TokenArrays:
    """Documents whose token ids are in memory (a `data.batches.collate.ResidueReader`): sample i is the i-th array.

    Args:
        documents: ``(tokens,)`` uint8 each, begin and end token included where they have them.
    """

    def __init__(self, documents: Sequence[NDArray[np.uint8]]) -> None:
        self.documents = documents

    def tokens(self, bin_: Bin) -> NDArray[np.uint8]:
        """(real slots,) token ids of a bin's documents, concatenated."""
        places = zip(bin_.samples.tolist(), bin_.starts.tolist(), bin_.lengths.tolist(), strict=True)
        return np.concatenate([self.documents[of][start : start + length] for of, start, length in places])


class PlainContents(Contents):
    """Documents as they are, without targets."""

    def fill(self, bin_: Bin) -> FilledBin:
        """The documents of a bin."""
        return fill_bin(bin_, self.residues.tokens(bin_))


@dataclass(frozen=True, slots=True)
class PackedDocuments:
    """One bin of documents, for one forward pass."""

    documents: NDArray[np.int64]
    """(n,) places of the documents in the caller's order, in the order in which the batch holds them."""
    lengths: NDArray[np.int64]
    """(n,) tokens of each."""
    batch: Batch
    """On the host. Large ones have free slots at the end, up to a multiple of `STEP`; none fills a bin as in training.

    So lengths vary, and nothing is compiled; but they are few, because a CPU's library keeps code for each.
    """

    @property
    def firsts(self) -> NDArray[np.int64]:
        """(n,) slot of the first token of each document."""
        return np.cumsum(self.lengths) - self.lengths


def bins_of(
    samples: NDArray[np.int64],
    starts: NDArray[np.int64],
    lengths: NDArray[np.int64],
    settings: BinSettings,
) -> list[Bin]:
    """Bins of documents by best fit in their order.

    Args:
        samples: (documents,) the numbers that their residues have.
        starts: (documents,) first token of each that is read.
        lengths: (documents,) tokens of each that are read, in 1..`settings.bin_tokens`.
        settings: sizes of a bin.
    """
    groups = _packed(lengths, settings).bins()
    return [Bin(samples[own], np.zeros_like(own), starts[own], lengths[own]) for own in groups]


def packed(
    contents: Contents,
    lengths: NDArray[np.int64],
    *,
    samples: NDArray[np.int64] | None = None,
    starts: NDArray[np.int64] | None = None,
    rank: int = 0,
    ranks: int = 1,
) -> Iterator[PackedDocuments]:
    """Documents in bins, best fit in their order; one bin is in memory at a time.

    Args:
        contents: what the bins hold; `PlainContents` for documents as they are.
        lengths: (documents,) int64 tokens of each, special tokens included, in 1..`contents.settings.bin_tokens`.
        samples: (documents,) the numbers by which `contents.residues` knows them; None for 0, 1, 2, ...
        starts: (documents,) first token of each that is read; None for 0.
        rank: of this process.
        ranks: processes that share the bins: this one gets each `ranks`-th, from the bin `rank` on.

    Raises:
        ValueError: a document is longer than a bin.
    """
    samples = np.arange(len(lengths)) if samples is None else samples
    starts = np.zeros_like(lengths) if starts is None else starts
    for own in _packed(lengths, contents.settings).bins()[rank::ranks]:
        of_bin = contents.fill(Bin(samples[own], np.zeros_like(own), starts[own], lengths[own]))
        tokens = int(lengths[own].sum())
        slots = tokens if tokens <= 4 * STEP else -(-tokens // STEP) * STEP
        yield PackedDocuments(own, lengths[own], collate([of_bin], BinSize(slots, len(own)), [0]))


class RankShard(Protocol):
    """How bins are dealt to processes that compute together: what is asked of an engine, or of one process alone."""

    @property
    def data_rank(self) -> int: ...  # noqa: D102
    @property
    def data_world_size(self) -> int: ...  # noqa: D102
    def raise_if_interrupted(self) -> None: ...  # noqa: D102
    def share(self, batch: Batch) -> Batch: ...  # noqa: D102


def iterate_bins(bins: Sequence[Bin], contents: Contents, engine: RankShard) -> Iterator[tuple[Bin, Batch, bool]]:
    """Bins that processes share which compute together, each with free slots as in training; collective.

    Every process takes as many forward passes, the last one idle if need be: an engine that shards parameters needs all
    of them in each pass.

    Yields:
        For each pass of this process the bin, its batch on the host, and whether the bin is its own: where the bins
        have run out, the batch is idle, and the bin another process's.
    """
    for first in range(0, len(bins), engine.data_world_size):
        engine.raise_if_interrupted()
        index = first + engine.data_rank
        is_own = index < len(bins)
        bin_ = bins[index if is_own else -1]
        batch = contents.batch([bin_], [0])
        yield bin_, engine.share(batch if is_own else batch.idle()), is_own


def _packed(lengths: NDArray[np.int64], settings: BinSettings) -> BinMembers:
    longest = int(lengths.max(initial=0))
    if longest > settings.bin_tokens:
        raise ValueError(
            f"a document of {longest:,} tokens does not fit into a bin of {settings.bin_tokens:,}; read it in "
            f"parts, or take bins of at least {longest:,}"
        )
    return pack(lengths, settings.bin_tokens, settings.documents_per_bin)


def split_by_tokens(lengths: NDArray[np.int64], most_tokens: int, most_documents: int) -> Iterator[slice]:
    """Consecutive documents that are read together, so that results in the caller's order need bounded memory.

    Args:
        lengths: (documents,) tokens of each.
        most_tokens: of a stretch; a document of more is a stretch of its own.
        most_documents: of a stretch.
    """
    ends = np.cumsum(lengths)
    first = 0
    while first < len(lengths):
        before = int(ends[first - 1]) if first else 0
        fitting = int(np.searchsorted(ends, before + most_tokens, side="right"))
        end = max(first + 1, min(fitting, first + most_documents))
        yield slice(first, end)
        first = end
