"""Shelves: the residues of all corpora of a run, by sample id; what a worker opens.

In: folders of token stores, finished or still growing. Out: tokens of documents. Kept: memory maps.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from data.alphabet import CLS, EOS
from data.compiled import compiled
from data.plan import Bin
from data.sampler import CORPUS_BITS

_MOST_TOUCHED = 2048
"""Records after which files are mapped anew. Each touch maps some 64 KB around it, and what is mapped counts as
resident: without this a worker would seem to grow to the size of the corpus. 2,048 are 134 MB at most."""
_SMALL_BYTES = 200 << 20
"""Stores whose files together are no larger stay mapped: mapping them anew would save nothing."""


class Shelves:
    """Token stores side by side, the corpora of a run in their order."""

    def __init__(self, folders: Sequence[Path]) -> None:
        self._folders = tuple(folders)
        self._maps: list[tuple[NDArray[np.uint8], NDArray[np.uint64]] | None] = [None] * len(folders)
        self._touched = 0

    def __reduce__(self) -> tuple[type["Shelves"], tuple[tuple[Path, ...]]]:
        return Shelves, (self._folders,)  # a map that is pickled would take the whole corpus along

    def tokens(self, documents: Bin) -> NDArray[np.uint8]:
        """(real slots,) true token ids of a bin's documents, one behind the other."""
        gather = compiled(_gather) or _gather_by_slices
        out = np.empty(documents.num_tokens, np.uint8)
        places = np.cumsum(documents.lengths) - documents.lengths
        corpora = documents.samples >> CORPUS_BITS
        for corpus in set(corpora.tolist()):
            mine = slice(None) if len(self._folders) == 1 else corpora == corpus
            records = documents.samples[mine] & ((1 << CORPUS_BITS) - 1)
            arrays = (documents.starts[mine], documents.lengths[mine], places[mine])
            gather(*self._map(corpus, records), records, *arrays, out)
        return out

    def residues(self, sample: int) -> NDArray[np.uint8]:
        """(length,) residue ids of one sample."""
        record = sample & ((1 << CORPUS_BITS) - 1)
        residues, offsets = self._map(sample >> CORPUS_BITS, np.array([record]))
        return residues[int(offsets[record]) : int(offsets[record + 1])]

    def num_residues(self, samples: NDArray[np.int64]) -> NDArray[np.int64]:
        """(n,) residues of each sample."""
        lengths = np.empty(len(samples), np.int64)
        corpora = samples >> CORPUS_BITS
        for corpus in set(corpora.tolist()):
            mine = corpora == corpus
            records = samples[mine] & ((1 << CORPUS_BITS) - 1)
            _, offsets = self._map(corpus, records)
            lengths[mine] = offsets[records + 1] - offsets[records]
        return lengths

    def _map(self, corpus: int, records: NDArray[np.int64]) -> tuple[NDArray[np.uint8], NDArray[np.uint64]]:
        """Maps that hold `records`: a store that is still written grows behind its map."""
        if self._touched > _MOST_TOUCHED:
            self._touched = 0
            if sum(array.nbytes for maps in self._maps if maps for array in maps) > _SMALL_BYTES:
                self._maps = [None] * len(self._folders)
        self._touched += len(records)
        held = self._maps[corpus]
        last = int(records.max())
        if held is None or last + 1 >= len(held[1]) or len(held[0]) < held[1][last + 1]:
            offsets = _mapped(self._folders[corpus] / "offsets.bin", np.uint64)
            held = _mapped(self._folders[corpus] / "tokens.bin", np.uint8), offsets
            self._maps[corpus] = held
        return held


def _mapped(path: Path, dtype: type[np.generic]) -> NDArray[Any]:
    """The whole items of a file that may be growing; a plain array, as slicing a memmap costs three times as much."""
    return np.asarray(np.memmap(path, dtype, "r", shape=(path.stat().st_size // np.dtype(dtype).itemsize,)))


def _gather_by_slices(
    residues: NDArray[np.uint8],
    offsets: NDArray[np.uint64],
    records: NDArray[np.int64],
    starts: NDArray[np.int64],
    lengths: NDArray[np.int64],
    places: NDArray[np.int64],
    out: NDArray[np.uint8],
) -> None:
    """Copy documents of one store into `out`, with begin and end tokens where the termini lie inside.

    Token t of a protein is its begin token (t = 0), residue t - 1, or its end token.

    Args:
        residues: the store's tokens.
        offsets: the store's offsets.
        records: (documents,) record of each.
        starts: (documents,) first token of the slice.
        lengths: (documents,) tokens of the slice.
        places: (documents,) where each begins in `out`.
        out: uint8, long enough.
    """
    begins, ends = (offsets[records + step].tolist() for step in (0, 1))
    documents = zip(begins, ends, starts.tolist(), lengths.tolist(), places.tolist(), strict=True)
    for begin, end, start, length, place in documents:
        inside = residues[begin + max(start - 1, 0) : min(begin + start + length - 1, end)]
        at = place + (start == 0)
        out[at : at + len(inside)] = inside
        if start == 0:
            out[place] = CLS
        if start + length == end - begin + 2:
            out[place + length - 1] = EOS


def _gather(residues, offsets, records, starts, lengths, places, out):  # type: ignore[no-untyped-def]
    for document in range(len(records)):
        begin = np.int64(offsets[records[document]])
        end = np.int64(offsets[records[document] + 1])
        start, length, place = starts[document], lengths[document], places[document]
        first = begin + start - 1  # the residue that slot `place` would hold
        low, high = 1 if start == 0 else 0, min(length, end - first)
        # Unsigned: for an index that might be negative, numba adds a test that keeps the loop from being vectorised.
        source, target = np.uint64(first + low), np.uint64(place + low)
        for step in range(np.uint64(high - low)):
            out[target + step] = residues[source + step]
        if start == 0:
            out[place] = CLS
        if start + length == end - begin + 2:
            out[place + length - 1] = EOS
