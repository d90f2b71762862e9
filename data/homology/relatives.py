"""Relatives: for each sequence of one set the most similar one of another; and clusters of relatives.

In: records of stores. Out: `SearchHits`, `NearestHits`, clusters, and what found them. Kept: what
`data.homology.mmseqs` keeps of clusters; what a search found, at the place that `data.store.derived` gives, in
``hits-HASH.npz``, so that nobody who asks the same sequences against the same others waits again. Files that MMseqs2
writes meanwhile are removed.

Peptides are compared by position (`data.homology.peptides`). MMseqs2 finds the relatives of longer sequences; where it
is not installed, shared words stand in for it (`data.homology.kmers`), and the result says so. No hit is no proof that
there is no relative: each search also tells which queries it finds when it looks for them, its positive control.
"""

import hashlib
import json
import tempfile
import zipfile
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from data.homology import kmers, mmseqs, name_table, peptides
from data.homology.components import find_components
from data.homology.mmseqs import COVERAGE, cluster_by_identity
from data.store.derived import cache_dir, find
from zymogen.console.progress import ProgressBar
from zymogen.files.durable import replacing_file

if TYPE_CHECKING:
    from data.store.token_store import TokenStore

SEARCH = ("-s", "7.5", "-e", "1e-3", "--max-seqs", "1000")
"""Options of easy-search with which the side that is scored is compared with the side that trains."""
_TOGETHER = int(SEARCH[-1])
"""Records of a store up to which they are all searched among each other at once, for every fold and part: no more hits
of a query are left out than by a search of its own."""
_BLOCK = 1 << 20
_WITHIN = ("-s", "7.5", "--max-seqs", "1000", "-e", "1e-3", "-c", str(COVERAGE), "--cov-mode", "0")
"""Options with which `cluster_within` searches: those of the clusters."""
_FORMAT = "zymogen.hits/2"
_CROWDED = 0.9
"""Share of the most hits of a query from which on its relatives among the queries may hide those among the targets."""


class NearestHits(NamedTuple):
    """For each query the target that is most similar to it."""

    record: NDArray[np.int64]
    """(queries,) record number of the target; -1 where none was found."""
    identity: NDArray[np.float64]
    """(queries,) share of equal positions, in (0, 1]; 0 where none was found."""
    is_searchable: NDArray[np.bool_]
    """(queries,) whether it equals a target, or the search finds it when it is among the targets: of another, nothing
    is known where none was found."""


class SearchHits(NamedTuple):
    """Pairs of a query and a target that are similar, by rising query; each array has a row for each pair."""

    query: NDArray[np.int32]
    """Place among the queries, from 0."""
    target: NDArray[np.int32]
    """Place among the targets, from 0."""
    identity: NDArray[np.float64]
    """Share of equal positions, in (0, 1]; an estimate where shared words found the pair."""
    coverage: NDArray[np.float64]
    """Share of the query that is aligned; 1 where shared words found the pair."""
    score: NDArray[np.float32]
    """The higher, the more similar: bits of the alignment, or the identity by position or by shared words."""
    is_searchable: NDArray[np.bool_]
    """(queries,) whether the search finds each query when it is among the targets."""


class Clustering(NamedTuple):
    """Which records are relatives."""

    hashes: NDArray[np.uint64]
    """(records,) hash of each record's cluster; it depends on sequences alone."""
    description: str
    """The program, and what it was asked for."""
    is_approximate: bool
    """Whether shared words found them, as MMseqs2 could not run."""


def related(store: "TokenStore", min_identity: float) -> Clustering:
    """Clusters of sequences of at least `min_identity`, by MMseqs2 or, where it cannot run, by shared words.

    Peptides are compared by position (`data.homology.peptides`).
    """
    records = np.arange(store.num_records)
    is_long = not mmseqs.why_not_installed() or store.num_residues(records) >= peptides.SHORT
    if not mmseqs.why_not_installed() or find(store, f"clusters-mmseqs-{min_identity!r}-") or not np.any(is_long):
        clusters = cluster_by_identity(store, min_identity)
        return Clustering(np.asarray(clusters.of_records), clusters.description, False)
    description = f"{kmers.NAME}: identity {min_identity}; {mmseqs.why_not_installed()}"
    hashes = kmers.clusters(store, min_identity)
    return Clustering(
        peptides.cluster_peptides(hashes, hashes[peptides.links(store, records, min_identity)]), description, True
    )


def cluster_within(
    store: "TokenStore", records: NDArray[np.int64], identities: Sequence[float]
) -> dict[float, NDArray[np.int64]]:
    """Relatives among some records at several identities, by one search: connected components of the pairs it finds.

    A cluster at an identity lies within one at a lower identity. So of the records that `related` puts in clusters of
    several at the lowest identity, these are the clusters at the others; the rest of the store is in none.

    Args:
        store: holds the records.
        records: (R,) the records.
        identities: least identities, each in (0, 1].

    Returns:
        identity -> (R,) number of each record's component.

    Raises:
        ValueError: MMseqs2 failed; the message has the end of its output.
    """
    if not len(records):
        return {each: np.zeros(0, np.int64) for each in identities}
    if mmseqs.why_not_installed():
        return {each: np.unique(related(store, each).hashes[records], return_inverse=True)[1] for each in identities}
    distinct, of_distinct = np.unique(np.asarray(store.digests)[records], return_inverse=True)
    first = np.zeros(len(distinct), np.int64)
    first[of_distinct[::-1]] = records[::-1]
    with tempfile.TemporaryDirectory(prefix="zymogen-mmseqs-") as folder:
        work = Path(folder)
        mmseqs.write_fasta(store, work / "in.fasta", enumerate(first.tolist()))
        least = ("--min-seq-id", str(min(identities)))
        with ProgressBar(f"comparing {len(first):,} sequences that have relatives with each other", after_s=2.0):
            what = ("easy-search", "in.fasta", "in.fasta", "out.tsv", "tmp", *_WITHIN, *least)
            mmseqs.run(work, *what, "--format-output", "query,target,fident")
        rows = np.loadtxt(work / "out.tsv", ndmin=2).reshape(-1, 3)
    found = {}
    for identity in identities:
        place = np.zeros(store.num_records, np.int64)
        place[first] = np.arange(len(first))
        pairs = rows[rows[:, 2] >= identity - 1e-9, :2].astype(np.int64)
        pairs = np.concatenate([pairs, place[peptides.links(store, first, identity)].T])
        found[identity] = find_components(len(first), pairs[:, 0], pairs[:, 1])[of_distinct]
    return found


def search_method() -> str:
    """What `nearest` searches with on this machine."""
    if mmseqs.why_not_installed():
        return f"{kmers.NAME}; {peptides.NAME}"
    return f"MMseqs2 {mmseqs.version('a search')} easy-search {' '.join(SEARCH)}; {peptides.NAME}"


def nearest(
    store: "TokenStore",
    records: NDArray[np.int64],
    against: "TokenStore",
    among: NDArray[np.int64] | None = None,
    min_coverage: float = 0.5,
) -> NearestHits:
    """The most similar target of each query, where the alignment covers at least `min_coverage` of the *query*.

    A query that equals a target has identity 1, whatever a search finds. Of equally similar targets it is the first.

    Args:
        store: the store of the queries.
        records: (queries,) their records.
        against: the store of the targets.
        among: (targets,) their records; None for all of the store.
        min_coverage: least share of the query that is aligned; shared words ignore it.

    Raises:
        ValueError: MMseqs2 failed; the message has the end of its output.
    """
    record = equal(store, records, against, among)
    identity, is_searchable = np.where(record >= 0, 1.0, 0.0), record >= 0
    if (record < 0).any():
        found = hits(store, records, against, among)
        kept = (found.coverage >= min_coverage) & (record[found.query] < 0)
        query, target = found.query[kept], _numbers(against, among)[found.target[kept]]
        order = np.lexsort((target, -found.identity[kept], query))
        rows, first = np.unique(query[order], return_index=True)
        record[rows], identity[rows] = target[order][first], found.identity[kept][order][first]
        is_searchable = is_searchable | found.is_searchable
    return NearestHits(record, identity, is_searchable)


def hits(
    store: "TokenStore", records: NDArray[np.int64], against: "TokenStore", among: NDArray[np.int64] | None = None
) -> SearchHits:
    """All pairs of a query and a target that a search finds similar; they are kept beside `store`.

    Args:
        store: the store of the queries.
        records: (queries,) their records.
        against: the store of the targets.
        among: (targets,) their records; None for all of the store.

    Raises:
        ValueError: MMseqs2 failed; the message has the end of its output.
    """
    targets = _numbers(against, among)
    if not len(records) or not len(targets):
        return _typed((*np.zeros((5, 0)), np.ones(len(records))))
    longer = np.flatnonzero(store.num_residues(records) >= peptides.SHORT)

    def searched() -> SearchHits:
        query, target, identity, is_searchable = peptides.similar(store, records, against, targets)
        found = _of_longer(store, records[longer], against, targets)
        is_searchable[longer] &= found.is_searchable
        is_of_two = against.num_residues(targets)[found.target] >= peptides.SHORT
        of_longer: list[NDArray[Any]] = [longer[found.query], *found[1:5]]
        of_peptides: list[NDArray[Any]] = [query, target, identity, np.ones(len(query)), identity]
        columns = [np.concatenate([one[is_of_two], other]) for one, other in zip(of_longer, of_peptides, strict=True)]
        return _in_order(columns, is_searchable)

    return _kept(store, records, against, targets, search_method() if len(longer) else peptides.NAME, searched)


def _kept(
    store: "TokenStore",
    records: NDArray[np.int64],
    against: "TokenStore",
    targets: NDArray[np.int64],
    by: str,
    searched: Callable[[], SearchHits],
) -> SearchHits:
    """What was found before of the same sequences, else what is searched now."""
    key = hashlib.blake2b(json.dumps([_FORMAT, by]).encode(), digest_size=16)
    for of, numbers in ((store, records), (against, targets)):
        key.update(len(numbers).to_bytes(8, "little") + np.asarray(of.digests)[numbers].astype("<u8").tobytes())
    path = cache_dir(store, f"hits-{key.hexdigest()}.npz")
    with suppress(OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile), np.load(path) as kept:  # or not whole
        return _typed([kept[name] for name in SearchHits._fields])
    found = searched()
    # What cannot be kept, for want of space or of a right, is searched again.
    with suppress(OSError, ValueError), replacing_file(path) as new, new.open("wb") as file:
        np.savez(file, **found._asdict())
    return found


def _of_longer(
    store: "TokenStore", records: NDArray[np.int64], against: "TokenStore", targets: NDArray[np.int64]
) -> SearchHits:
    """The pairs of queries that are no peptides."""
    if not len(records):
        return _typed(np.zeros((6, 0)))
    if not mmseqs.why_not_installed():
        if store.folder != against.folder or store.num_records > _TOGETHER:
            return _aligned(store, records, against, targets)
        everything = np.arange(store.num_records)
        of_all = f"{search_method()}; a table with itself"
        found = _kept(
            store, everything, store, everything, of_all, lambda: _aligned(store, everything, store, everything)
        )
        return _among(found, records, targets)
    query, target, identity, is_searchable = kmers.similar(store, records, against, targets)
    return _typed((query, target, identity, np.ones(len(query)), identity, is_searchable))


def _among(found: SearchHits, records: NDArray[np.int64], targets: NDArray[np.int64]) -> SearchHits:
    """The pairs of some records with some others, of those of all records with all."""
    place = np.full((2, len(found.is_searchable)), -1)
    place[0, records], place[1, targets] = np.arange(len(records)), np.arange(len(targets))
    query, target = place[0, found.query], place[1, found.target]
    kept = (query >= 0) & (target >= 0)
    return _in_order(
        [query[kept], target[kept], *(column[kept] for column in found[2:5])], found.is_searchable[records]
    )


def _numbers(store: "TokenStore", among: NDArray[np.int64] | None) -> NDArray[np.int64]:
    return np.arange(store.num_records) if among is None else among


def equal(
    store: "TokenStore", records: NDArray[np.int64], against: "TokenStore", among: NDArray[np.int64] | None = None
) -> NDArray[np.int64]:
    """(queries,) the first target that equals each query, -1 without one; the targets are read in blocks."""
    sought, of_query = np.unique(np.asarray(store.digests)[records], return_inverse=True)
    found = np.full(len(sought), -1, np.int64)
    if not len(sought):
        return found
    count = against.num_records if among is None else len(among)
    for start in range(0, count, _BLOCK):
        stop = min(start + _BLOCK, count)
        block = np.arange(start, stop) if among is None else among[start:stop]
        of_block = np.asarray(against.digests)[block]
        rows = np.minimum(np.searchsorted(sought, of_block), len(sought) - 1)
        hits = np.flatnonzero((sought[rows] == of_block) & (found[rows] < 0))[::-1]
        found[rows[hits]] = block[hits]  # backwards, so that the first of several stays
    return np.asarray(found[of_query])


def _aligned(
    store: "TokenStore", records: NDArray[np.int64], against: "TokenStore", targets: NDArray[np.int64]
) -> SearchHits:
    """What MMseqs2 finds. The queries are among the targets too, as the positive control."""
    count = len(targets)
    own = 0 if store.folder == against.folder and np.array_equal(records, targets) else count
    with tempfile.TemporaryDirectory(prefix="zymogen-mmseqs-") as folder:
        work = Path(folder)
        mmseqs.write_fasta(store, work / "queries.fasta", enumerate(records.tolist()))
        mmseqs.write_fasta(against, work / "targets.fasta", enumerate(targets.tolist()))
        if own:
            mmseqs.write_fasta(store, work / "targets.fasta", enumerate(records.tolist(), own))
        text = f"searching for relatives of {len(records):,} sequences among {len(targets):,} with MMseqs2"
        with ProgressBar(text, after_s=0.0):
            mmseqs.run(
                work,
                *("easy-search", "queries.fasta", "targets.fasta", "out.tsv", "tmp", *SEARCH),
                *("--format-output", "query,target,fident,qcov,bits"),
            )
        columns = {name: "DOUBLE" if number > 1 else "INTEGER" for number, name in enumerate(SearchHits._fields[:5])}
        source, parameters = name_table.rows(work / "out.tsv", columns)
        best = f"SELECT {', '.join(columns)} FROM {source} WHERE target < {count} ORDER BY query, score DESC, target"
        itself = f"count(*) FILTER (target = query + {own}) > 0"
        is_hidden = f"min(target) >= {count} AND count(*) >= {_CROWDED * int(SEARCH[-1])}"
        control = f"SELECT query FROM {source} GROUP BY query HAVING {itself} AND NOT ({is_hidden})"
        with name_table.session(work) as connection:
            batches = [tuple(batch) for batch in name_table.batches(connection, best, parameters)]
            searchable = [batch for (batch,) in name_table.batches(connection, control, parameters)]
    joined = [np.concatenate(column) for column in zip(*batches, strict=True)] if batches else np.zeros((5, 0))
    return _typed((*joined, np.isin(np.arange(len(records)), np.concatenate([np.zeros(0, int), *searchable]))))


def _in_order(columns: Sequence[NDArray[Any]], is_searchable: NDArray[np.bool_]) -> SearchHits:
    order = np.lexsort((columns[1], -columns[4], columns[0]))
    return _typed((*(column[order] for column in columns), is_searchable))


def _typed(columns: Iterable[NDArray[Any]]) -> SearchHits:
    types = np.int32, np.int32, np.float64, np.float64, np.float32, np.bool_
    return SearchHits(*(column.astype(dtype) for column, dtype in zip(columns, types, strict=True)))
