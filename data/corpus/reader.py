"""Reader of the corpora of a run: residues by sample id; every worker opens its own.

In: folders of token stores, finished or still growing. Out: tokens of documents. Kept: memory maps.
"""

import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from data.alphabet import CLS, EOS
from data.order.plan import Bin
from data.order.sampler import CORPUS_BITS
from data.store.journal import JOURNAL
from data.store.token_store import FACTS, PATIENCE_S, POLL_S, RESTORE, UINT64, TokenStore, read_facts
from zymogen.compiled import compiled

_MOST_TOUCHED = 2048
"""How many records are read before files are mapped again. Reading a record maps about 64 KB around it, which counts as
resident memory: without this, a worker would seem to grow to the size of the corpus. 2,048 records are at most 134 MB.
"""
_SMALL_BYTES = 200 << 20
"""Stores that are together no larger than this stay mapped, as mapping them again would save nothing."""
_WHOLE = -1


class CorpusReader:
    """Token stores side by side, the corpora of a run in their order."""

    def __init__(self, folders: Sequence[Path]) -> None:
        self._folders = tuple(folders)
        self._maps: list[tuple[NDArray[np.uint8], NDArray[np.uint64]] | None] = [None] * len(folders)
        self._touched = 0

    def __reduce__(self) -> tuple[type["CorpusReader"], tuple[tuple[Path, ...]]]:
        return CorpusReader, (self._folders,)  # pickling a memory map would pickle the whole corpus

    def tokens(self, bin_: Bin) -> NDArray[np.uint8]:
        """(real slots,) true token ids of a bin's documents, concatenated.

        Raises:
            ValueError: the offsets of a store are damaged.
        """
        gather = compiled(_gather)
        out = np.empty(bin_.num_tokens, np.uint8)
        places = np.cumsum(bin_.lengths) - bin_.lengths
        corpora = bin_.samples >> CORPUS_BITS
        for corpus in set(corpora.tolist()):
            mine = slice(None) if len(self._folders) == 1 else corpora == corpus
            records = bin_.samples[mine] & ((1 << CORPUS_BITS) - 1)
            arrays = (bin_.starts[mine], bin_.lengths[mine], places[mine])
            wrong = gather(*self._map(corpus, records), records, *arrays, out)
            if wrong != _WHOLE:  # perhaps an old page of a file that grew on another machine
                self._maps[corpus] = None
                wrong = gather(*self._map(corpus, records), records, *arrays, out)
            if wrong != _WHOLE:
                raise self._damaged(corpus, int(records[wrong]))
        return out

    def residues(self, sample: int) -> NDArray[np.uint8]:
        """(length,) residue ids of one sample."""
        (length,) = self.num_residues(np.array([sample])).tolist()
        record = sample & ((1 << CORPUS_BITS) - 1)
        residues, offsets = self._map(sample >> CORPUS_BITS, np.array([record]))
        return residues[int(offsets[record]) : int(offsets[record]) + length]

    def num_residues(self, samples: NDArray[np.int64]) -> NDArray[np.int64]:
        """(n,) number of residues of each sample.

        Raises:
            ValueError: the offsets of a store are damaged.
        """
        lengths = np.empty(len(samples), np.int64)
        corpora = samples >> CORPUS_BITS
        for corpus in set(corpora.tolist()):
            mine = corpora == corpus
            records = samples[mine] & ((1 << CORPUS_BITS) - 1)
            found = _lengths(*self._map(corpus, records), records)
            if found.min(initial=1) < 1:
                self._maps[corpus] = None
                found = _lengths(*self._map(corpus, records), records)
            if found.min(initial=1) < 1:
                raise self._damaged(corpus, int(records[found.argmin()]))
            lengths[mine] = found
        return lengths

    def _damaged(self, corpus: int, record: int) -> ValueError:
        folder = self._folders[corpus]
        return ValueError(
            f"{folder / 'offsets.bin'} is damaged: record {record} does not lie in tokens.bin where it says; `python "
            f"-m data verify {folder}` reports more; check the disk, and {RESTORE}"
        )

    def _map(self, corpus: int, records: NDArray[np.int64]) -> tuple[NDArray[np.uint8], NDArray[np.uint64]]:
        """Maps that hold `records`; they are made again if a store that is still written has grown."""
        if self._touched > _MOST_TOUCHED:
            self._touched = 0
            if sum(array.nbytes for maps in self._maps if maps for array in maps) > _SMALL_BYTES:
                self._maps = [None] * len(self._folders)
        self._touched += len(records)
        held = self._maps[corpus]
        last = int(records.max())
        if held is None or not _holds(held, last):
            held = self._maps[corpus] = self._mapped(corpus, last)
        return held

    def _mapped(self, corpus: int, last: int) -> tuple[NDArray[np.uint8], NDArray[np.uint64]]:
        """Maps that hold the record `last`, which the builder of the store has committed."""
        folder, end, more = self._folders[corpus], time.monotonic() + PATIENCE_S, True
        while True:
            offsets = _mapped(folder / "offsets.bin", UINT64)
            held = _mapped(folder / "tokens.bin", "u1"), offsets
            if _holds(held, last):
                return held
            if not more or time.monotonic() > end:
                if (folder / FACTS).exists():
                    _ = TokenStore(folder).facts  # names a file that was cut short
                raise self._damaged(corpus, last)
            # Checked before the files are mapped again, so that what was written until now is seen.
            if (folder / FACTS).exists():
                more = last + 1 >= len(offsets) or int(offsets[last + 1]) <= read_facts(folder)["residues"]
            else:
                more = (folder / JOURNAL).exists()
            time.sleep(POLL_S * more)


def _holds(held: tuple[NDArray[np.uint8], NDArray[np.uint64]], last: int) -> bool:
    residues, offsets = held
    return last + 1 < len(offsets) and int(offsets[last + 1]) <= len(residues)


def _mapped(path: Path, dtype: str) -> NDArray[Any]:
    """The whole items of a file that may be growing; a plain array, as slicing a memmap costs three times as much."""
    with path.open("rb") as file:  # opened each time, as NFS asks for the size when a file is opened
        count = os.fstat(file.fileno()).st_size // np.dtype(dtype).itemsize
        return np.asarray(np.memmap(file, dtype, "r", shape=(count,))) if count else np.empty(0, dtype)


def _lengths(residues: NDArray[np.uint8], offsets: NDArray[np.uint64], records: NDArray[np.int64]) -> NDArray[np.int64]:
    """(n,) number of residues of each record; 0 for one that does not lie in `residues`."""
    begins, ends = offsets[records], offsets[records + 1]
    return np.where((begins < ends) & (ends <= len(residues)), ends - begins, 0).astype(np.int64)


def _gather(
    residues: NDArray[np.uint8],
    offsets: NDArray[np.uint64],
    records: NDArray[np.int64],
    starts: NDArray[np.int64],
    lengths: NDArray[np.int64],
    places: NDArray[np.int64],
    out: NDArray[np.uint8],
) -> int:
    """Copy documents of one store into `out`, with a begin or end token if the terminus lies inside the document.

    Token t of a protein is its begin token (t = 0), residue t - 1, or its end token.

    Args:
        residues: the store's tokens.
        offsets: the store's offsets.
        records: (documents,) record of each document.
        starts: (documents,) first token of the slice.
        lengths: (documents,) number of tokens of the slice.
        places: (documents,) where each document begins in `out`.
        out: uint8 array that is long enough.

    Returns:
        The first document that does not lie in `residues` as the offsets say, which is not copied; -1 if all do.
    """
    for document in range(len(records)):
        begin = np.int64(offsets[records[document]])
        end = np.int64(offsets[records[document] + 1])
        start, length, place = starts[document], lengths[document], places[document]
        # Checked here, as numba does not check indices: a wrong one would read or write other memory.
        if begin < 0 or begin >= end or end > len(residues) or start + length > end - begin + 2:
            return document
        first = begin + start - 1  # the residue that slot `place` would hold
        low, high = 1 if start == 0 else 0, min(length, end - first)
        # Unsigned: for an index that may be negative, numba adds a test that prevents vectorization of the loop.
        source, target = np.uint64(first + low), np.uint64(place + low)
        for step in range(np.uint64(high - low)):
            out[target + step] = residues[source + step]
        if start == 0:
            out[place] = CLS
        if start + length == end - begin + 2:
            out[place + length - 1] = EOS
    return _WHOLE
