"""What is in a store: lengths, composition and duplicates, all exact, in bounded memory.

In: a `Store`. Out: what is in it, as lines to read and as JSON. Kept: nothing; the sort that finds duplicates writes
about 20 bytes a record into the system's temporary folder (TMPDIR), and removes them.
"""

import os
import struct
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from data.alphabet import TOKENS
from data.homology import name_table
from data.homology.clusters import open_clusters
from data.sources.protein import shown
from data.store.build import left_out
from data.store.token_store import UINT64, Store

QUANTILES = (1, 5, 25, 50, 75, 95, 99)
"""The percentages that are reported."""
LARGEST = 5
"""How many groups of equal sequences are reported."""
SHOWN = 3
"""How many records of each group are listed."""

_BLOCK_RECORDS = 1 << 20
_BLOCK_RESIDUES = 1 << 22


@dataclass(frozen=True, slots=True, kw_only=True)
class Lengths:
    """How many records have which length."""

    values: NDArray[np.int64]
    """(distinct,) the lengths that occur, in residues, rising; at least one."""
    counts: NDArray[np.int64]
    """(distinct,) number of records of each length, at least 1."""

    @property
    def num_records(self) -> int:
        """Number of records."""
        return int(self.counts.sum())

    @property
    def mean(self) -> float:
        """Mean length in residues."""
        return int((self.values * self.counts).sum()) / self.num_records

    def quantile(self, percent: int) -> int:
        """The smallest length that at least `percent` per cent of the records do not exceed (no interpolation)."""
        rank = max(1, -(-percent * self.num_records // 100))
        return int(self.values[np.searchsorted(np.cumsum(self.counts), rank)])

    def longer_than(self, residues: int) -> float:
        """Share of the records with more than `residues` residues."""
        return int(self.counts[self.values > residues].sum()) / self.num_records


class EqualRecords(NamedTuple):
    """Records that have the same sequence."""

    size: int
    """Number of these records, at least 2."""
    residues: int
    """Length of the sequence."""
    records: tuple[int, ...]
    """The first `SHOWN` of these records, or all if they are fewer; counted from 0."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Duplicates:
    """Exact duplicates: records whose residues equal those of an earlier record."""

    num_duplicates: int
    """Number of records that equal an earlier one."""
    num_groups: int
    """Number of sequences that occur more than once."""
    largest: tuple[EqualRecords, ...]
    """The largest groups, at most `LARGEST`; among groups of equal size those that begin first."""


def statistics(store: Store, lengths: Lengths) -> dict[str, Any]:
    """The statistics of a store as an object for `json.dumps`; shares in 0..1, lengths in residues, records from 0.

    The store is read from beginning to end; `lengths` are those of `count_lengths`.

    Raises:
        ValueError: the store is damaged, or there is no space to sort in.
    """
    duplicates = find_duplicates(store)
    return {
        "store": str(store.folder),
        "fingerprint": store.fingerprint,
        "records": store.num_records,
        "residues": store.total_residues,
        "rejected": store.rejected,
        "unknown_letters": store.unknown_letters,
        "lengths": {
            "min": int(lengths.values[0]),
            "quantiles": {str(percent): lengths.quantile(percent) for percent in QUANTILES},
            "max": int(lengths.values[-1]),
            "mean": lengths.mean,
        },
        "composition": {
            token: {"count": count, "share": count / store.total_residues}
            for token, count in count_tokens(store).items()
        },
        "distinct_sequences": store.num_records - duplicates.num_duplicates,
        "duplicates": {
            "records": duplicates.num_duplicates,
            "groups": duplicates.num_groups,
            "largest": [
                group._asdict()
                | {"records": [{"record": record, "header": store.header(record)} for record in group.records]}
                for group in duplicates.largest
            ],
        },
    }


def count_lengths(store: Store) -> Lengths:
    """Every length that occurs, with its number of records. N residues have at most sqrt(2 N) different lengths."""
    counted: Counter[int] = Counter()
    for start in range(0, store.num_records, _BLOCK_RECORDS):
        offsets = store.read("offsets.bin", UINT64, start, _BLOCK_RECORDS + 1)
        values, counts = np.unique(np.diff(offsets), return_counts=True)
        counted.update(dict(zip(values.tolist(), counts.tolist(), strict=True)))
    values = np.array(sorted(counted), np.int64)
    return Lengths(values=values, counts=np.array([counted[v] for v in values.tolist()], np.int64))


def count_tokens(store: Store) -> dict[str, int]:
    """Number of residues of each token that occurs, the most frequent first.

    Raises:
        ValueError: a byte is not a token.
    """
    counts = np.zeros(256, np.int64)
    for start in range(0, store.total_residues, _BLOCK_RESIDUES):
        counts += np.bincount(store.read("tokens.bin", np.uint8, start, _BLOCK_RESIDUES), minlength=256)
    if counts[len(TOKENS) :].any():
        wrong = len(TOKENS) + int(counts[len(TOKENS) :].argmax())
        raise ValueError(
            f"{store.folder}/tokens.bin holds the byte {wrong}, tokens are 0 to {len(TOKENS) - 1}: it is damaged; "
            "`python -m data verify` says more, and a store that is deleted is built again"
        )
    order = np.argsort(-counts, kind="stable")
    return {TOKENS[token]: int(counts[token]) for token in order.tolist() if counts[token]}


def find_duplicates(store: Store) -> Duplicates:
    """Group the records of equal residues.

    Records with the same digest are grouped on disk and then compared residue by residue, so that two sequences that
    only share a digest do not count as equal.

    Raises:
        ValueError: the temporary folder has no space.
    """
    num_duplicates = num_groups = 0
    largest: list[EqualRecords] = []
    with (store.folder / "tokens.bin").open("rb") as tokens, (store.folder / "offsets.bin").open("rb") as offsets:
        for _, run in groupby(_sharing_a_digest(store), itemgetter(0)):
            groups: dict[bytes, EqualRecords] = {}
            for _, record in run:
                start, end = struct.unpack("<QQ", os.pread(offsets.fileno(), 16, 8 * record))
                residues = os.pread(tokens.fileno(), end - start, start)
                size, _, records = groups.get(residues, EqualRecords(0, 0, ()))
                groups[residues] = EqualRecords(size + 1, end - start, (*records, record)[:SHOWN])
            equal = [group for group in groups.values() if group.size > 1]
            num_groups += len(equal)
            num_duplicates += sum(group.size - 1 for group in equal)
            largest = sorted([*largest, *equal], key=lambda group: (-group.size, group.records[0]))[:LARGEST]
    return Duplicates(num_duplicates=num_duplicates, num_groups=num_groups, largest=tuple(largest))


def _sharing_a_digest(store: Store) -> Iterator[tuple[int, int]]:
    """(digest, record) of every record whose digest another record has too, sorted."""

    def no_room(reason: str) -> str:
        return (
            f"{store.folder}: the records cannot be sorted in {tempfile.gettempdir()}: {reason}; it needs some 20 "
            "bytes a record there: free space, or set TMPDIR to another folder"
        )

    with name_table.session(Path(tempfile.gettempdir()), no_room) as connection:
        name_table.register_hashes(connection, open_clusters(store, None).blocks())
        connection.execute("CREATE TABLE digests AS FROM hashes")
        shared = "SELECT hash FROM digests GROUP BY hash HAVING count(*) > 1"
        query = f"FROM digests WHERE hash IN ({shared}) ORDER BY hash, record"
        for digests, records in name_table.batches(connection, query):
            yield from zip(digests.tolist(), records.tolist(), strict=True)


def lines(found: Mapping[str, Any]) -> Iterator[str]:
    """The statistics as lines of text."""
    lengths, duplicates = found["lengths"], found["duplicates"]
    yield f"store        {found['store']}"
    yield f"fingerprint  {found['fingerprint']}"
    yield f"records      {found['records']:,}"
    if found["rejected"]:
        yield f"left out     {left_out(found['rejected'])} (rejected.jsonl)"
    yield f"residues     {found['residues']:,}"
    yield f"length       min {lengths['min']:,}, mean {lengths['mean']:,.1f}, max {lengths['max']:,} residues"
    yield "  quantiles  " + ", ".join(f"{percent} %: {length:,}" for percent, length in lengths["quantiles"].items())
    yield f"distinct     {found['distinct_sequences']:,} sequences"
    share = 100 * duplicates["records"] / found["records"]
    yield f"duplicates   {duplicates['records']:,} records ({share:.2f} %) equal an earlier one"
    for group in duplicates["largest"]:
        yield f"  {group['size']:,} records of one sequence of {group['residues']:,} residues"
        for of_one in group["records"]:
            yield f"    record {of_one['record']}  {shown(of_one['header'])}"
        if group["size"] > len(group["records"]):
            yield f"    and {group['size'] - len(group['records']):,} more"
    yield "composition"
    for token, of_token in found["composition"].items():
        yield f"  {token:<6} {of_token['count']:>20,}  {100 * of_token['share']:8.4f} %"
    if found["unknown_letters"]:
        counted = ", ".join(f"{letter} {times:,}" for letter, times in found["unknown_letters"].items())
        yield f"read as <unk>: {counted}"
