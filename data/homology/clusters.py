"""Clusters: which cluster each record is in, and the records of each cluster, through memory maps.

In: a store, and a table of clusters or none. Out: `Clusters`; `excluded`, the records that a table of names lists.
Kept: folders at the place that `data.store.derived` gives, usually inside the store, each written whole or not at all:

    clusters-HASH/of_records.bin    uint64  (records,) hash of each record's cluster
    clusters-HASH/clusters.json     format, fingerprint, what it was made from
    .../members/clusters.bin        uint64  (clusters,) hashes, rising
    .../members/offsets.bin         uint64  (clusters + 1,) where each cluster starts in records.bin
    .../members/records.bin         uint32  (records,) records by cluster, rising; uint64 for more than 2**32 records
    .../members/members.json        format, hash of each of the three
    excluded-HASH/records.bin       int64   the records that a table of names lists, rising; beside it excluded.json

Without a table equal sequences share a cluster: the hashes are the store's own digests and need no file.
"""

import hashlib
import json
import warnings
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from data.homology import name_table
from data.homology.name_table import names
from data.store import derived
from data.store.derived import cache_dir, remedy
from data.store.token_store import UINT64, hash_of, new_hash
from zymogen.console.progress import ProgressBar
from zymogen.files.durable import new_dir

if TYPE_CHECKING:
    from data.store.token_store import TokenStore

FORMAT = "zymogen.clusters/1"
EXCLUDED_FORMAT = "zymogen.excluded/2"
MEMBERS_FORMAT = "zymogen.members/1"
_BLOCK = 1 << 20
INT64 = "<i8"
_MEMBERS, _MEMBERS_FACTS = ("clusters.bin", "offsets.bin", "records.bin"), "members.json"


class ClusterMembers(NamedTuple):
    """The records of every cluster; memory maps."""

    clusters: NDArray[np.uint64]
    """(clusters,) hashes of the clusters, rising."""
    offsets: NDArray[np.uint64]
    """(clusters + 1,) where each cluster starts in `records`."""
    records: NDArray[np.unsignedinteger[Any]]
    """(records,) record numbers, rising within a cluster; uint32, or uint64 for more than 2**32 records."""


@dataclass(frozen=True)
class Clusters:
    """A clustering of a store's records."""

    store: "TokenStore"
    folder: Path | None
    """The folder in which it is kept; None if the clusters are those of equal sequences."""

    @property
    def facts(self) -> dict[str, Any]:
        """The content of clusters.json; empty for clusters of equal sequences.

        Raises:
            ValueError: it is damaged, or of another version; or of_records.bin differs from what was written.
        """
        return {} if self.folder is None else self._opened[0]

    @property
    def of_records(self) -> NDArray[np.uint64]:
        """(records,) memory map of the hash of each record's cluster; of a growing store, those that can be read."""
        return self.store.digests if self.folder is None else self._opened[1]

    @cached_property
    def _opened(self) -> tuple[dict[str, Any], NDArray[np.uint64]]:
        assert self.folder is not None
        path = self.folder / "clusters.json"
        facts = derived.read_json(path, ("format", "fingerprint"), self.folder)
        if facts["format"] != FORMAT:
            raise ValueError(
                f"{path}: the format is {facts['format']!r}, this version reads {FORMAT!r}; {remedy(self.folder)}"
            )
        store = self.store
        of_records = self.folder / "of_records.bin"
        return facts, derived.read_array(of_records, UINT64, facts["fingerprint"], store.num_records)

    def blocks(self) -> Iterator[tuple[int, NDArray[np.uint64]]]:
        """First record and hashes of each block of `of_records`, of a finished store.

        They are read, not mapped: the pages of a map stay in memory after they were scanned.
        """
        path = self.folder / "of_records.bin" if self.folder and self.facts else self.store.folder / "digests.bin"
        with path.open("rb", buffering=0) as file:
            for start in range(0, self.store.num_records, _BLOCK):
                yield start, np.fromfile(file, UINT64, min(_BLOCK, self.store.num_records - start))

    @property
    def fingerprint(self) -> str:
        """Hash of the records' clusters; the same for equal clusterings of a corpus."""
        if self.folder is None:
            return new_hash(b"equal sequences" + self.store.fingerprint.encode()).hexdigest()
        return str(self.facts["fingerprint"])

    @property
    def description(self) -> str:
        """What the clusters are, in a few words."""
        return str(self.facts.get("description", "equal sequences share a cluster"))

    @cached_property
    def members(self) -> ClusterMembers:
        """The records of every cluster; the first use sorts the records by cluster and keeps the result."""
        name = f"{self.folder.name}/members" if self.folder else "members-of-equal-sequences"
        folder = cache_dir(self.store, name)
        hashes = derived.kept_json(folder / _MEMBERS_FACTS, _MEMBERS, partial(_write_members, self))

        def read(name: str, dtype: str, count: int | None = None) -> NDArray[Any]:
            return derived.read_array(folder / name, dtype, hashes[name], count)

        clusters = read("clusters.bin", UINT64)
        offsets = read("offsets.bin", UINT64, len(clusters) + 1)
        return ClusterMembers(clusters, offsets, read("records.bin", _of_one(self), self.store.num_records))


def open_clusters(store: "TokenStore", table: Path | None) -> Clusters:
    """The clusters of a store by a table, or those of equal sequences without one.

    Args:
        store: a finished store.
        table: TSV of (cluster, record name) as MMseqs2 writes it, or UniProt's idmapping_selected.tab, from which the
            UniRef50 ids are taken; uncompressed or gzip. A record belongs to the cluster of the first of its `names`
            that is listed.

    Raises:
        ValueError: the table does not exist or has a line that is not a row; a record is not listed; or a name is in
            two clusters.
    """
    if table is None:
        return Clusters(store, None)
    folder = cache_dir(store, f"clusters-{_stamp(table, 'data.clusters')}")
    if not folder.is_dir():
        reading = ProgressBar(f"reading the clusters of {table}")
        with reading, new_dir(folder) as building, name_table.session(building) as connection:
            hashes = _first_listed(name_table.clusters_of(connection, store, table), store, table)
            write_clustering(building, hashes, {"description": f"clusters of {table}", "table": str(table)})
    return Clusters(store, folder)


def write_clustering(building: Path, hashes: Iterable[NDArray[np.uint64]], facts: dict[str, Any]) -> None:
    """Fill the folder of a clustering: the cluster hashes of all records in order, and facts about them."""
    facts = {"format": FORMAT, "fingerprint": write_array(building / "of_records.bin", hashes, UINT64), **facts}
    (building / "clusters.json").write_text(json.dumps(facts, indent=1))


def write_array(path: Path, blocks: Iterable[NDArray[Any]], dtype: str) -> str:
    """Write blocks of an array one after the other, and return the hash of the file."""
    content = new_hash()
    with path.open("wb") as file:
        for block in blocks:
            written = block.astype(dtype).tobytes()
            content.update(written)
            file.write(written)
    return content.hexdigest()


def excluded(store: "TokenStore", table: Path) -> NDArray[np.int64]:
    """Records that the first column of a headerless TSV names, int64, rising; a memory map if there are any.

    Names that the store does not have are ignored, and a name that several records have excludes all of them; a
    warning reports how many names are ignored or shared.

    Raises:
        ValueError: the table does not exist, has lines with different numbers of columns, or has names and none of them
            is in the store.
    """
    folder = cache_dir(store, f"excluded-{_stamp(table, 'data.exclude', EXCLUDED_FORMAT)}")
    facts = derived.kept_json(
        folder / "excluded.json", (*name_table.MATCHES, "hash"), partial(_write_excluded, store, table)
    )
    if facts["unknown"] and facts["unknown"] == facts["names"]:
        raise ValueError(
            f"{table} lists {facts['names']} names and none of them is in {store.folder}: it belongs to another "
            "corpus; check data.exclude, or leave it out"
        )
    if facts["unknown"]:
        warnings.warn(f"{table}: {facts['unknown']} of {facts['names']} names are not in {store.folder}", stacklevel=2)
    if facts["shared"]:
        warnings.warn(
            f"{table}: {facts['shared']} of {facts['names']} names are shared by {facts['sharing']} records of "
            f"{store.folder}, and all of these are excluded; a name is the first word of a header, or the accession in "
            "it: where only some are meant, give every record a first word of its own",
            stacklevel=2,
        )
    return derived.read_array(folder / "records.bin", INT64, facts["hash"])


def _write_excluded(store: "TokenStore", table: Path, building: Path) -> dict[str, Any]:
    with ProgressBar(f"reading the names of {table}"), name_table.session(building) as connection:
        records, matches = name_table.records_named(connection, store, table)
        content_hash = write_array(building / "records.bin", records, INT64)
    return {"format": EXCLUDED_FORMAT, "table": str(table), **matches, "hash": content_hash}


def _stamp(table: Path, setting: str, format_of: str = FORMAT) -> str:
    """A short hash of the format and of what distinguishes tables without reading them: path, size, time of change."""
    try:
        status = table.stat()
    except OSError as error:
        raise ValueError(f"{table}: {error.strerror}; check {setting}") from None
    content = json.dumps([format_of, str(table.resolve()), status.st_size, status.st_mtime_ns])
    return hashlib.blake2b(content.encode(), digest_size=8).hexdigest()


def _first_listed(
    rows: Iterator[tuple[NDArray[Any], ...]], store: "TokenStore", table: Path
) -> Iterator[NDArray[np.uint64]]:
    """The cluster hash of every record in order, from rows (key, hash) in rising order.

    Raises:
        ValueError: a record has no row, or a key has two clusters.
    """
    done, last = 0, -1  # number of records that were given; key of the row before
    for keys, hashes in rows:
        before = np.concatenate([[last], keys[:-1].astype(np.int64)])
        twice = keys.astype(np.int64) == before
        if twice.any():
            record, place = divmod(int(keys[twice][0]), 2)
            raise ValueError(
                f"{table}: {name_table.shown(_names(store, record)[place])!r} is listed in two clusters; "
                "leave one of the lines out"
            )
        last = int(keys[-1])
        records = keys.astype(np.int64) >> 1
        first = records != before >> 1
        records, hashes = records[first], hashes[first]
        gaps = np.flatnonzero(records != np.arange(done, done + len(records)))
        if len(gaps):
            _refuse_unlisted(store, done + int(gaps[0]), table)
        done += len(records)
        yield hashes
    if done < store.num_records:
        _refuse_unlisted(store, done, table)


def _refuse_unlisted(store: "TokenStore", record: int, table: Path) -> None:
    wanted = " or ".join(repr(name_table.shown(name)) for name in _names(store, record))
    raise ValueError(
        f"{', '.join(store.facts['sources'][:3])}: record {wanted} is not listed in {table}; add it to that table "
        "(a cluster of its own will do), or leave data.clusters out"
    )


def _names(store: "TokenStore", record: int) -> tuple[bytes, ...]:
    return names(store.headers(record, record + 1)[0])


def _of_one(clusters: Clusters) -> str:
    """The type that holds the number of a record."""
    return "<u4" if clusters.store.num_records <= 1 << 32 else UINT64


def _write_members(clustering: Clusters, building: Path) -> dict[str, Any]:
    of_one = _of_one(clustering)
    clusters, offsets, records = ((building / name).open("wb") for name in _MEMBERS)
    with (
        ProgressBar("sorting the records by cluster"),
        name_table.session(building) as connection,
        clusters,
        offsets,
        records,
    ):
        name_table.register_hashes(connection, clustering.blocks())
        done, last = 0, None
        for hashes, members in name_table.batches(connection, "FROM hashes ORDER BY hash, record"):
            starts = np.concatenate([[last is None or hashes[0] != last], hashes[1:] != hashes[:-1]])
            clusters.write(hashes[starts].astype(UINT64).tobytes())
            offsets.write((done + np.flatnonzero(starts)).astype(UINT64).tobytes())
            records.write(members.astype(of_one).tobytes())
            done, last = done + len(hashes), hashes[-1]
        offsets.write(np.array([done], UINT64).tobytes())
    facts = {"format": MEMBERS_FORMAT}
    for name in _MEMBERS:
        with (building / name).open("rb", buffering=0) as file:
            facts[name] = hash_of(file).hexdigest()
    return facts
