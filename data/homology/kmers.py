"""Relatives by shared words of five residues: an approximate stand-in for MMseqs2 where that is not installed.

In: records of stores. Out: pairs of records that share words; clusters. Kept: nothing.

Two sequences that agree in a share p of their positions agree in about p**5 of their words, so the shared words over
all words, to the power 1/5, estimate the identity. Pairs that share no more words than chance gives are not related:
of two proteins of 300 residues, relatives below about 45 % identity are not found, of shorter ones even closer ones.
`data.homology.peptides` compares the shortest.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from data.alphabet import STANDARD_IDS
from data.homology.components import find_components

if TYPE_CHECKING:
    from data.store.token_store import TokenStore

LENGTH = 5
"""Residues of a word."""
NAME = f"shared words of {LENGTH} residues (approximate: relatives below about 45 % identity are not found)"
"""What this is, for everything that reports its results."""

_LEAST_SHARED = 4
_CHANCE = 8e-7
"""Probability that a word of one protein equals one of another: (sum of squared frequencies of residues)**5."""
_ROWS = 256
_LETTERS = len(STANDARD_IDS)


def similar(
    store: "TokenStore", records: NDArray[np.int64], against: "TokenStore", targets: NDArray[np.int64]
) -> tuple[NDArray[np.int32], NDArray[np.int32], NDArray[np.float64], NDArray[np.bool_]]:
    """Pairs of a query and a target that share more words than chance gives.

    Args:
        store: the store of the queries.
        records: (queries,) their records.
        against: the store of the targets.
        targets: (targets,) their records.

    Returns:
        For each pair, by rising query: place of the query, place of the target, estimated identity of the query.
        And for each query, whether it has enough words to be found itself.
    """
    of_queries = _words(store, records)
    found = [*_pairs(of_queries, _words(against, targets))]
    query, target, shared, words = (np.concatenate(column) for column in zip(*found, strict=True))
    sizes = _sizes(of_queries)
    is_found = sizes >= _least_shared(sizes, sizes)
    return query.astype(np.int32), target.astype(np.int32), (shared / words) ** (1 / LENGTH), is_found


def clusters(store: "TokenStore", min_identity: float) -> NDArray[np.uint64]:
    """Connected components of the pairs whose estimated identity is at least `min_identity`.

    A pair's estimate is over the words of the shorter sequence, so that a fragment is in the cluster of its protein.

    Returns:
        (records,) for each record the lowest digest of its cluster.
    """
    digests, of_distinct = np.unique(np.asarray(store.digests), return_inverse=True)
    records = np.zeros(len(digests), np.int64)
    records[of_distinct[::-1]] = np.arange(store.num_records)[::-1]
    words = _words(store, records)
    labels = np.arange(len(digests))
    for query, target, shared, sizes in _pairs(words, words):
        close = (shared / np.minimum(sizes, _sizes(words)[target])) ** (1 / LENGTH) >= min_identity
        labels = find_components(len(digests), labels[query[close]], labels[target[close]])[labels]
    lowest = np.full(len(digests), np.iinfo(np.uint64).max, np.uint64)
    np.minimum.at(lowest, labels, digests)
    return np.asarray(lowest[labels][of_distinct])


def _words(store: "TokenStore", records: NDArray[np.int64]) -> Any:
    """(records, words) sparse 0 or 1: which words of standard residues each record has."""
    from scipy.sparse import csr_array

    parts = [_numbered(store, records[start : start + _ROWS]) for start in range(0, len(records), _ROWS)]
    columns, sizes = map(np.concatenate, zip(*parts, strict=True)) if parts else (np.zeros(0, np.int64),) * 2
    shape = (len(records), _LETTERS**LENGTH)
    return csr_array((np.ones(len(columns), np.int32), columns, np.append(0, np.cumsum(sizes))), shape=shape)


def _numbered(store: "TokenStore", records: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The different words of each record as rising numbers, one record after the other, and how many each has."""
    code_of = np.full(256, -1, np.int64)
    code_of[STANDARD_IDS] = np.arange(_LETTERS)
    residues = [store.residues(record) for record in records.tolist()]
    of_record = np.repeat(np.arange(len(records)), [len(each) for each in residues])
    codes = np.append(code_of[np.concatenate(residues)], np.full(LENGTH - 1, -1))  # a window for every residue
    windows = np.lib.stride_tricks.sliding_window_view(codes, LENGTH)
    ends = np.append(of_record, np.full(LENGTH - 1, -1))[LENGTH - 1 :]
    is_word = (windows >= 0).all(1) & (of_record == ends)
    found = np.unique(of_record[is_word] * _LETTERS**LENGTH + windows[is_word] @ _LETTERS ** np.arange(LENGTH))
    of_found, words = np.divmod(found, _LETTERS**LENGTH)
    return words, np.bincount(of_found, minlength=len(records))


def _sizes(words: Any) -> NDArray[np.int64]:
    return np.asarray(np.diff(words.indptr), np.int64)


def _pairs(queries: Any, targets: Any) -> Iterator[tuple[NDArray[np.int64], ...]]:
    """All pairs of a query and a target that share enough words, some queries at a time.

    Yields:
        Places of queries, places of targets, how many words they share, and how many the query has.
    """
    of_words = targets.T.tocsr()
    sizes, target_sizes = _sizes(queries), _sizes(targets)
    for start in range(0, queries.shape[0], _ROWS):
        block = (queries[start : start + _ROWS] @ of_words).tocoo()
        query, target, shared = block.row + start, block.col, block.data.astype(np.int64)
        enough = shared >= _least_shared(sizes[query], target_sizes[target])
        query, target = query[enough].astype(np.int64), target[enough].astype(np.int64)
        yield query, target, shared[enough], sizes[query]


def _least_shared(sizes: NDArray[np.int64], target_sizes: NDArray[np.int64]) -> NDArray[np.float64]:
    """Shared words from which on two sequences of so many words share more than chance gives."""
    return np.asarray(_LEAST_SHARED + 3 * _CHANCE * sizes * target_sizes)
