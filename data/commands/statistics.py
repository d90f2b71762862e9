"""What is in a store: lengths, composition and duplicates, all exact, in bounded memory.

In: a `TokenStore`. Out: what is in it, as lines to read and as JSON. Kept: nothing; the sort that finds duplicates
writes about 20 bytes a record into the system's temporary folder (TMPDIR), and removes them.
"""

import os
import struct
import tempfile
from collections.abc import Iterator, Mapping
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np

from data.alphabet import TOKENS
from data.corpus.lengths import LengthHistogram
from data.homology import name_table
from data.homology.clusters import open_clusters
from data.sources.protein import shown
from data.store.build import format_rejected
from data.store.token_store import TokenStore

QUANTILES = (1, 5, 25, 50, 75, 95, 99)
"""The percentages that are reported."""
LARGEST = 5
"""How many groups of equal sequences are reported."""
SHOWN = 3
"""How many records of each group are listed."""

_BLOCK_RESIDUES = 1 << 22


def statistics(store: TokenStore, lengths: LengthHistogram) -> dict[str, Any]:
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
            "mean": lengths.num_residues / lengths.num_records,
        },
        "composition": {
            token: {"count": count, "share": count / store.total_residues}
            for token, count in count_tokens(store).items()
        },
        "distinct_sequences": store.num_records - duplicates["records"],
        "duplicates": duplicates,
    }


def count_tokens(store: TokenStore) -> dict[str, int]:
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


def find_duplicates(store: TokenStore) -> dict[str, Any]:
    """Group the records of equal residues.

    Records with the same digest are grouped on disk and then compared residue by residue, so that two sequences that
    only share a digest do not count as equal.

    Returns:
        ``records``: how many equal an earlier one; ``groups``: how many sequences occur more than once; ``largest``:
        the largest groups, at most `LARGEST`, among groups of equal size those that begin first. A group has its
        ``size``, the ``residues`` of its sequence, and the number and header of its first `SHOWN` ``records``.

    Raises:
        ValueError: the temporary folder has no space.
    """
    num_duplicates = num_groups = 0
    largest: list[tuple[int, int, list[int]]] = []
    with (store.folder / "tokens.bin").open("rb") as tokens, (store.folder / "offsets.bin").open("rb") as offsets:
        for _, run in groupby(_sharing_a_digest(store), itemgetter(0)):
            groups: dict[bytes, tuple[int, int, list[int]]] = {}
            for _, record in run:
                start, end = struct.unpack("<QQ", os.pread(offsets.fileno(), 16, 8 * record))
                residues = os.pread(tokens.fileno(), end - start, start)
                size, _, records = groups.get(residues, (0, 0, []))
                groups[residues] = size + 1, end - start, [*records, record][:SHOWN]
            equal = [group for group in groups.values() if group[0] > 1]
            num_groups += len(equal)
            num_duplicates += sum(size - 1 for size, _, _ in equal)
            largest = sorted([*largest, *equal], key=lambda group: (-group[0], group[2]))[:LARGEST]
    shown_groups = [
        {
            **{"size": size, "residues": residues},
            "records": [{"record": record, "header": store.header(record)} for record in records],
        }
        for size, residues, records in largest
    ]
    return {"records": num_duplicates, "groups": num_groups, "largest": shown_groups}


def _sharing_a_digest(store: TokenStore) -> Iterator[tuple[int, int]]:
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
        yield f"left out     {format_rejected(found['rejected'])} (rejected.jsonl)"
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
