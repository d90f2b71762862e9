"""Relatives: for each sequence of one set the most similar one of another; and clusters of relatives.

In: records of stores. Out: `Nearest`, clusters, and what found them. Kept: what `data.homology.mmseqs` keeps of
clusters; files that MMseqs2 writes meanwhile are removed.

MMseqs2 finds them; where it is not installed, shared words stand in for it (`data.homology.kmers`), and the result says
so.
"""

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from data.homology import kmers, name_table, program
from data.homology.kmers import Nearest
from data.homology.mmseqs import cluster_by_identity
from data.progress_line import WorkLine
from data.store.derived import found_at

if TYPE_CHECKING:
    from data.store.token_store import Store

SEARCH = ("-s", "7.5", "-e", "1e-3")
"""Options of easy-search with which the side that is scored is compared with the side that trains."""
_BLOCK = 1 << 20


class Clustering(NamedTuple):
    """Which records are relatives."""

    hashes: NDArray[np.uint64]
    """(records,) hash of each record's cluster; it depends on sequences alone."""
    description: str
    """The program, and what it was asked for."""
    is_approximate: bool
    """Whether shared words found them, as MMseqs2 was not installed."""


def related(store: "Store", min_identity: float) -> Clustering:
    """Clusters of sequences of at least `min_identity`, by MMseqs2 or, where it is not installed, by shared words."""
    if program.is_installed() or found_at(store, f"clusters-mmseqs-{min_identity!r}-"):
        clusters = cluster_by_identity(store, min_identity)
        return Clustering(np.asarray(clusters.of_records), clusters.description, False)
    description = f"{kmers.NAME}: identity {min_identity}; MMseqs2 is not installed"
    return Clustering(kmers.clusters(store, min_identity), description, True)


def searched_by() -> str:
    """What `nearest` searches with on this machine."""
    if not program.is_installed():
        return kmers.NAME
    return f"MMseqs2 {program.version('a search')} easy-search {' '.join(SEARCH)}"


def nearest(
    store: "Store",
    records: NDArray[np.int64],
    against: "Store",
    among: NDArray[np.int64] | None = None,
    min_coverage: float = 0.5,
) -> Nearest:
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
    identity = np.where(record >= 0, 1.0, 0.0)
    rest = np.flatnonzero(record < 0)
    if len(rest) and (among is None or len(among)) and against.num_records:
        search = _aligned if program.is_installed() else _by_words
        record[rest], identity[rest] = search(store, records[rest], against, among, min_coverage)
    return Nearest(record, identity)


def equal(
    store: "Store", records: NDArray[np.int64], against: "Store", among: NDArray[np.int64] | None = None
) -> NDArray[np.int64]:
    """(queries,) the first target that equals each query, -1 without one; the targets are read in blocks."""
    digests = np.asarray(store.digests)[records]
    sought, of_query = np.unique(digests, return_inverse=True)
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


def _by_words(
    store: "Store", records: NDArray[np.int64], against: "Store", among: NDArray[np.int64] | None, coverage: float
) -> Nearest:
    del coverage
    return kmers.nearest(store, records, against, among)


def _aligned(
    store: "Store", records: NDArray[np.int64], against: "Store", among: NDArray[np.int64] | None, coverage: float
) -> Nearest:
    """What MMseqs2 finds for each query."""
    targets = range(against.num_records) if among is None else among.tolist()
    record, identity = np.full(len(records), -1, np.int64), np.zeros(len(records))
    with tempfile.TemporaryDirectory(prefix="zymogen-mmseqs-") as folder:
        work = Path(folder)
        program.write_fasta(store, work / "queries.fasta", enumerate(records.tolist()))
        program.write_fasta(against, work / "targets.fasta", ((target, target) for target in targets))
        text = f"searching for relatives of {len(records):,} sequences among {len(targets):,} with MMseqs2"
        with WorkLine(text, after_s=0.0):
            program.run(
                work,
                *("easy-search", "queries.fasta", "targets.fasta", "out.tsv", "tmp", *SEARCH),
                *("--format-output", "query,target,fident,qcov"),
            )
        columns = {"query": "BIGINT", "target": "BIGINT", "identity": "DOUBLE", "coverage": "DOUBLE"}
        source, parameters = name_table.rows(work / "out.tsv", columns)
        best = (
            f"SELECT DISTINCT ON (query) query, target, identity FROM {source} WHERE coverage >= ? "
            "ORDER BY query, identity DESC, target"
        )
        with name_table.session(work) as connection:
            for queries, found, identities in name_table.batches(connection, best, [*parameters, coverage]):
                record[queries], identity[queries] = found, identities
    return Nearest(record, identity)
