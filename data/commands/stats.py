"""`python -m data stats`: what is in a store, in numbers.

In: sources or a store. Out: lengths, composition and duplicates as lines or JSON. Kept: the store. The sort that finds
duplicates writes about 20 bytes a record into the system's temporary folder (TMPDIR), and removes them.
"""

import argparse
import json
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from data.alphabet import TOKENS
from data.commands.build import store_of
from data.corpus.lengths import LengthHistogram, count_lengths
from data.homology import name_table
from data.homology.clusters import open_clusters
from data.store.build import format_rejected
from data.store.token_store import TokenStore
from zymogen.console.progress import ProgressBar

QUANTILES = (1, 5, 25, 50, 75, 95, 99)
"""The percentages that are reported."""

_BLOCK_RESIDUES = 1 << 22


def statistics(store: TokenStore, lengths: LengthHistogram) -> dict[str, Any]:
    """The statistics of a store as an object for `json.dumps`; shares in 0..1, lengths in residues, records from 0.

    The store is read from beginning to end; `lengths` are those of `count_lengths`.

    Raises:
        ValueError: the store is damaged, or there is no space to sort in.
    """
    distinct = count_distinct(store)
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
        "distinct_sequences": distinct,
        "duplicates": store.num_records - distinct,
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


def count_distinct(store: TokenStore) -> int:
    """Number of different digests; the temporary folder takes those that memory does not hold.

    Raises:
        ValueError: the temporary folder has no space.
    """
    folder = tempfile.gettempdir()

    def no_room(reason: str) -> str:
        return (
            f"{store.folder}: the records cannot be sorted in {folder}: {reason}; it needs some 20 bytes a record "
            "there: free space, or set TMPDIR to another folder"
        )

    with name_table.session(Path(folder), no_room) as connection:
        name_table.register_hashes(connection, open_clusters(store, None).blocks())
        return int(connection.execute("SELECT count(DISTINCT hash) FROM hashes").fetchall()[0][0])


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
    share = 100 * duplicates / found["records"]
    yield f"duplicates   {duplicates:,} records ({share:.2f} %) equal an earlier one"
    yield "composition"
    for token, of_token in found["composition"].items():
        yield f"  {token:<6} {of_token['count']:>20,}  {100 * of_token['share']:8.4f} %"
    if found["unknown_letters"]:
        counted = ", ".join(f"{letter} {times:,}" for letter, times in found["unknown_letters"].items())
        yield f"read as <unk>: {counted}"


def run(options: argparse.Namespace) -> int:
    """Count and print, and return the exit status."""
    store = store_of(options)
    with ProgressBar("counting residues and lengths"):
        found = statistics(store, count_lengths(store))
    print(json.dumps(found, indent=1) if options.json else "\n".join(lines(found)))
    return 0
