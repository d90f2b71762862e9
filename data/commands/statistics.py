"""What is in a store: lengths, composition and exact duplicates, exact, in bounded memory.

In: a `Store`. Out: `Statistics`, as lines to read and as JSON. Kept: nothing; the sort that finds duplicates spills
some 20 bytes a record into the system's temporary folder (TMPDIR), and removes them.
"""

import heapq
import os
import struct
import tempfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter
from typing import IO, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from data.alphabet import TOKENS
from data.sources.protein import shown
from data.store.token_store import UINT64, Store

QUANTILES = (1, 5, 25, 50, 75, 95, 99)
"""The percentages that are reported."""
LARGEST = 5
"""Groups of equal sequences that are reported."""
SHOWN = 3
"""Records of each of them that are named."""

_BLOCK_RECORDS = 1 << 20
_BLOCK_RESIDUES = 1 << 22
_SORT_MEMORY = "256MB"


@dataclass(frozen=True, slots=True, kw_only=True)
class Lengths:
    """How many records have which length."""

    values: NDArray[np.int64]
    """(distinct,) residues, rising; at least one."""
    counts: NDArray[np.int64]
    """(distinct,) records of each, at least 1."""

    @property
    def num_records(self) -> int:
        """All records."""
        return int(self.counts.sum())

    @property
    def mean(self) -> float:
        """Mean length in residues."""
        return int((self.values * self.counts).sum()) / self.num_records

    def quantile(self, percent: int) -> int:
        """The smallest length that at least `percent` of 100 records do not exceed (no interpolation)."""
        rank = max(1, -(-percent * self.num_records // 100))
        return int(self.values[np.searchsorted(np.cumsum(self.counts), rank)])

    def longer_than(self, residues: int) -> float:
        """Share of records with more than this many residues."""
        return int(self.counts[self.values > residues].sum()) / self.num_records


class EqualRecords(NamedTuple):
    """Records of one and the same sequence."""

    size: int
    """How many; at least 2."""
    residues: int
    """Length of the sequence."""
    records: tuple[int, ...]
    """The first of them, from 0, at most `SHOWN`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Duplicates:
    """Exact duplicates: records whose residues equal those of an earlier record."""

    num_duplicates: int
    """Records that equal an earlier one."""
    num_groups: int
    """Sequences that come more than once."""
    largest: tuple[EqualRecords, ...]
    """The largest groups, at most `LARGEST`; of equal size, the one that comes first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Statistics:
    """What a store holds."""

    folder: str
    fingerprint: str
    num_records: int
    num_residues: int
    lengths: Lengths
    composition: dict[str, int]
    """Residues of each token that occurs, the most frequent first."""
    duplicates: Duplicates
    headers: dict[int, str]
    """Header lines of the records that `duplicates.largest` names."""
    num_rejected: int
    """Records of the sources that were left out as bad."""
    unknown_letters: dict[str, int]
    """How often each letter outside the alphabet was read as ``<unk>``."""

    @property
    def num_distinct(self) -> int:
        """Different sequences."""
        return self.num_records - self.duplicates.num_duplicates


def statistics(store: Store) -> Statistics:
    """Read a store through once.

    Raises:
        ValueError: a token that does not exist, so the store is damaged; no room to sort in.
    """
    duplicates = find_duplicates(store)
    return Statistics(
        folder=str(store.folder),
        fingerprint=store.fingerprint,
        num_records=store.num_records,
        num_residues=store.total_residues,
        lengths=count_lengths(store),
        composition=count_tokens(store),
        duplicates=duplicates,
        headers={record: store.header(record) for group in duplicates.largest for record in group.records},
        num_rejected=int(store.facts["rejected"]),
        unknown_letters=store.unknown_letters,
    )


def count_lengths(store: Store) -> Lengths:
    """Every length that occurs, with its records. N residues in all have at most sqrt(2 N) different lengths."""
    counted: Counter[int] = Counter()
    for start in range(0, store.num_records, _BLOCK_RECORDS):
        offsets = _read(store, "offsets.bin", UINT64, start, _BLOCK_RECORDS + 1)
        values, counts = np.unique(np.diff(offsets), return_counts=True)
        counted.update(dict(zip(values.tolist(), counts.tolist(), strict=True)))
    values = np.array(sorted(counted), np.int64)
    return Lengths(values=values, counts=np.array([counted[v] for v in values.tolist()], np.int64))


def count_tokens(store: Store) -> dict[str, int]:
    """Residues of each token that occurs, the most frequent first.

    Raises:
        ValueError: a byte that is no token.
    """
    counts = np.zeros(256, np.int64)
    for start in range(0, store.total_residues, _BLOCK_RESIDUES):
        counts += np.bincount(_read(store, "tokens.bin", np.uint8, start, _BLOCK_RESIDUES), minlength=256)
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

    Digests are sorted outside memory, and records of one digest compared residue by residue, so that two sequences
    that merely share a digest are not called equal.

    Raises:
        ValueError: the temporary folder has no room.
    """
    num_duplicates = num_groups = 0
    largest: list[tuple[int, int, EqualRecords]] = []
    with (store.folder / "tokens.bin").open("rb") as tokens, (store.folder / "offsets.bin").open("rb") as offsets:
        for _, run in groupby(_neighbours(store), itemgetter(0)):
            groups: list[tuple[int, EqualRecords]] = []  # each sequence of this digest, and where it starts
            for _, earlier, record in run:
                if not groups:
                    start, residues = _span(offsets, earlier)
                    groups.append((start, EqualRecords(1, residues, (earlier,))))
                start, residues = _span(offsets, record)
                for i, (first, group) in enumerate(groups):
                    if group.residues == residues and _equal(tokens, first, start, residues):
                        groups[i] = first, EqualRecords(group.size + 1, residues, (*group.records, record)[:SHOWN])
                        break
                else:
                    groups.append((start, EqualRecords(1, residues, (record,))))
            for _, group in groups:
                num_duplicates += group.size - 1
                if group.size > 1:
                    num_groups += 1
                    heapq.heappush(largest, (group.size, -group.records[0], group))
            while len(largest) > LARGEST:
                heapq.heappop(largest)
    by_size = tuple(group for _, _, group in sorted(largest, reverse=True))
    return Duplicates(num_duplicates=num_duplicates, num_groups=num_groups, largest=by_size)


def _span(offsets: IO[bytes], record: int) -> tuple[int, int]:
    """Where a record starts in tokens.bin, and its residues."""
    start, end = struct.unpack("<QQ", os.pread(offsets.fileno(), 16, 8 * record))
    return start, end - start


def _equal(tokens: IO[bytes], a: int, b: int, num_residues: int) -> bool:
    """Whether the residues from `a` on are those from `b` on."""
    for done in range(0, num_residues, _BLOCK_RESIDUES):
        count = min(_BLOCK_RESIDUES, num_residues - done)
        if os.pread(tokens.fileno(), count, a + done) != os.pread(tokens.fileno(), count, b + done):
            return False
    return True


def _neighbours(store: Store) -> Iterator[tuple[int, int, int]]:
    """(digest, record before, record) of neighbours with one digest, sorted by digest and record."""
    last_digest, last_record = np.zeros(0, np.uint64), np.zeros(0, np.int64)
    for sorted_digests, sorted_records in _sorted_digests(store):
        digests = np.concatenate([last_digest, sorted_digests])
        records = np.concatenate([last_record, sorted_records])
        assert (digests[1:] >= digests[:-1]).all()
        same = np.flatnonzero(digests[1:] == digests[:-1])
        yield from zip(digests[same].tolist(), records[same].tolist(), records[same + 1].tolist(), strict=True)
        last_digest, last_record = digests[-1:], records[-1:]


def _sorted_digests(store: Store) -> Iterator[tuple[NDArray[np.uint64], NDArray[np.int64]]]:
    """Digests and their records in blocks, sorted by DuckDB, which spills to disk beyond `_SORT_MEMORY`."""
    import duckdb
    import pyarrow

    schema = pyarrow.schema([("digest", pyarrow.uint64()), ("record", pyarrow.int64())])

    def unsorted() -> Iterator[Any]:
        for start in range(0, store.num_records, _BLOCK_RECORDS):
            digests = _read(store, "digests.bin", UINT64, start, _BLOCK_RECORDS)
            records = np.arange(start, start + len(digests), dtype=np.int64)
            yield pyarrow.record_batch([pyarrow.array(digests), pyarrow.array(records)], schema=schema)

    with tempfile.TemporaryDirectory(prefix="zymogen-sort-") as folder:
        connection = duckdb.connect(config={"memory_limit": _SORT_MEMORY, "temp_directory": folder, "threads": 2})
        try:
            connection.execute("SET enable_progress_bar = false")
            connection.register("records", pyarrow.RecordBatchReader.from_batches(schema, unsorted()))
            # `sql` streams its result; `execute` would first copy it, and not in this order.
            found = connection.sql("SELECT digest, record FROM records ORDER BY digest, record")
            for batch in found.to_arrow_reader(_BLOCK_RECORDS):
                yield batch.column(0).to_numpy(), batch.column(1).to_numpy()
        except duckdb.Error as error:
            reason = str(error).splitlines()[0].rstrip(".")
            raise ValueError(
                f"{store.folder}: the records cannot be sorted in {tempfile.gettempdir()}: {reason}; it needs some 20 "
                "bytes a record there: free space, or set TMPDIR to another folder"
            ) from None
        finally:
            connection.close()


def _read(store: Store, name: str, dtype: type[np.generic] | str, first: int, count: int) -> NDArray[Any]:
    """Up to `count` items of a file; not through a map, whose pages would count as memory of this process."""
    return np.fromfile(store.folder / name, dtype, count, offset=first * np.dtype(dtype).itemsize)


def lines(found: Statistics) -> Iterator[str]:
    """The statistics as text."""
    lengths, duplicates = found.lengths, found.duplicates
    yield f"store        {found.folder}"
    yield f"fingerprint  {found.fingerprint}"
    yield f"records      {found.num_records:,}" + (
        f" ({found.num_rejected:,} more were bad and left out: rejected.jsonl)" if found.num_rejected else ""
    )
    yield f"residues     {found.num_residues:,}"
    yield f"length       min {lengths.values[0]:,}, mean {lengths.mean:,.1f}, max {lengths.values[-1]:,} residues"
    yield "  quantiles  " + ", ".join(f"{percent} %: {lengths.quantile(percent):,}" for percent in QUANTILES)
    yield f"distinct     {found.num_distinct:,} sequences"
    share = 100 * duplicates.num_duplicates / found.num_records
    yield f"duplicates   {duplicates.num_duplicates:,} records ({share:.2f} %) equal an earlier one"
    for group in duplicates.largest:
        yield f"  {group.size:,} records of one sequence of {group.residues:,} residues"
        for record in group.records:
            yield f"    record {record}  {shown(found.headers[record])}"
        if group.size > len(group.records):
            yield f"    and {group.size - len(group.records):,} more"
    yield "composition"
    for token, count in found.composition.items():
        yield f"  {token:<6} {count:>20,}  {100 * count / found.num_residues:8.4f} %"
    if found.unknown_letters:
        counted = ", ".join(f"{letter} {times:,}" for letter, times in found.unknown_letters.items())
        yield f"read as <unk>: {counted}"


def as_json(found: Statistics) -> dict[str, Any]:
    """The statistics as an object for `json.dumps`; shares in 0..1, lengths in residues, records from 0."""
    lengths, duplicates = found.lengths, found.duplicates
    return {
        "store": found.folder,
        "fingerprint": found.fingerprint,
        "records": found.num_records,
        "residues": found.num_residues,
        "rejected": found.num_rejected,
        "unknown_letters": found.unknown_letters,
        "lengths": {
            "min": int(lengths.values[0]),
            "quantiles": {str(percent): lengths.quantile(percent) for percent in QUANTILES},
            "max": int(lengths.values[-1]),
            "mean": lengths.mean,
        },
        "composition": {
            token: {"count": count, "share": count / found.num_residues} for token, count in found.composition.items()
        },
        "distinct_sequences": found.num_distinct,
        "duplicates": {
            "records": duplicates.num_duplicates,
            "groups": duplicates.num_groups,
            "largest": [
                {
                    "size": group.size,
                    "residues": group.residues,
                    "records": [{"record": record, "header": found.headers[record]} for record in group.records],
                }
                for group in duplicates.largest
            ],
        },
    }
