"""`python -m data head`: records of a store, as FASTA."""

import argparse
import os
import sys
from collections.abc import Sequence

from data.alphabet import FASTA_LETTERS
from data.commands.build import store_of
from data.homology.name_table import names
from data.store.token_store import TokenStore
from zymogen.console.progress import ProgressBar
from zymogen.settings.section import require

_LINE = 60
_BLOCK_RECORDS = 4096


def run(options: argparse.Namespace) -> int:
    """Print the chosen records, and return the exit status."""
    if options.name and (options.start is not None or options.count is not None):
        raise ValueError("-n and --start are for the records from one on; --name chooses single ones")
    count = 10 if options.count is None else options.count
    require(count >= 1, "-n", count, "it must be at least 1")
    store = store_of(options)
    if options.name:
        return _print_named(store, options.name)
    start = options.start or 0
    if not 0 <= start < store.num_records:
        raise ValueError(f"record {start} is not there: {store.folder} has records 0 to {store.num_records - 1}")
    for record in range(start, min(start + count, store.num_records)):
        _print_record(store, record, store.headers(record, record + 1)[0])
    return 0


def _print_named(store: TokenStore, wanted: Sequence[str]) -> int:
    """Print the records that have one of these names, in the store's order, in one pass over its headers."""
    missing = {os.fsencode(name) for name in wanted}
    sought = frozenset(missing)
    records: list[tuple[int, bytes]] = []
    with ProgressBar("looking for the names"):
        for start in range(0, store.num_records, _BLOCK_RECORDS):
            headers = store.headers(start, min(start + _BLOCK_RECORDS, store.num_records))
            records += [each for each in enumerate(headers, start) if sought.intersection(names(each[1]))]
    for record, header in records:
        missing.difference_update(names(header))
        _print_record(store, record, header)
    if missing:
        raise ValueError(
            f"{store.folder} has no record named {', '.join(sorted(map(os.fsdecode, missing)))}; a name is the first "
            "word of a header, or the accession in it (P12345 of sp|P12345|NAME_HUMAN)"
        )
    return 0


def _print_record(store: TokenStore, record: int, header: bytes) -> None:
    letters = FASTA_LETTERS[store.residues(record)].tobytes()
    rows = (letters[i : i + _LINE] for i in range(0, len(letters), _LINE))
    sys.stdout.buffer.write(b"\n".join([b">" + header, *rows, b""]))
