"""Build token stores, look into them, and prove what a run reads.

    python -m data build proteins.fasta.gz
    python -m data stats proteins.fasta.gz

In: a command, sources or a store. Out: text on standard output, exit status 0; 1 from `verify` for a store that is
damaged, 2 for a mistake in the input, 130 when interrupted.
"""

import argparse
import io
import json
import os
import re
import select
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import fields
from typing import TYPE_CHECKING

from data.arguments import parsers
from data.disk_error import CLOSED, FULL, one_line
from data.settings import CorpusSettings, IngestSettings

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from data.block import Source
    from data.build import Progress
    from data.store import Store

_LINE = 60
_BLOCK_RECORDS = 4096


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; the exit status."""
    arguments = sys.argv[1:] if arguments is None else arguments
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="surrogateescape")  # the names of files go out as they came in, UTF-8 or not
    parser, commands = parsers()
    try:
        if arguments and arguments[0] in commands:
            # Not by the outer parser, which cannot read options between a command's arguments.
            options = commands[arguments[0]].parse_intermixed_args(arguments[1:])
            status = _COMMANDS[arguments[0]](options)
        else:
            parser.parse_args(arguments or ["--help"])
            status = 2
        sys.stdout.flush()
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr, flush=True)
        return 2
    except KeyboardInterrupt:
        print("interrupted; the same command continues a build where it stood", file=sys.stderr, flush=True)
        return 130
    except BrokenPipeError:
        if not _reader_left():
            raise
        return 0
    except OSError as error:
        if error.errno not in CLOSED | FULL:
            raise
        print(f"error: {one_line(error)}", file=sys.stderr, flush=True)
        return 2
    return status


def _reader_left() -> bool:
    """Whether it was the reader of our output that left, as `head` does, and not a server that broke off."""
    output = select.poll()
    output.register(sys.stdout, 0)
    left = bool(output.poll(0))
    if left:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # the interpreter flushes once more
    return left


# Commands -----------------------------------------------------------------------------------------


def _build(options: argparse.Namespace) -> int:
    from data.build import build_into, open_or_build
    from data.progress_line import ProgressLine
    from data.source import STANDARD_INPUT, resolve, standard_input
    from data.store import REJECTED

    ingest, letters = _ingest(options), options.unknown_letters
    sources: Sequence[Source]
    if options.sources == [STANDARD_INPUT]:
        if options.output is None:
            raise ValueError("standard input has no name to be found again by; say with --output where its store goes")
        sources = [standard_input(letters, ingest)]
    else:
        found = resolve(CorpusSettings(sources=tuple(options.sources)), letters, ingest, options.store_dir)
        if found.store is not None:
            raise ValueError(f"{found.store} is a finished store; there is nothing to build")
        sources = found.sources
    with ProgressLine() as line:
        rate = _Rate(line)
        if options.output is not None:
            store = build_into(options.output, sources, letters, ingest, progress=rate)
        else:
            store = open_or_build(sources, options.store_dir, letters, ingest, progress=rate)
    print(f"store        {store.folder}")
    print(f"records      {store.num_records:,}")
    print(f"residues     {store.total_residues:,}")
    print(f"fingerprint  {store.fingerprint}")
    if store.facts["rejected"]:
        print(f"rejected     {store.facts['rejected']:,} bad records: {store.folder / REJECTED}")
    if store.unknown_letters:
        counted = ", ".join(f"{letter} {times:,}" for letter, times in store.unknown_letters.items())
        print(f"as <unk>     {counted}")
    print(f"time         {rate.shown(store.total_residues)}")
    return 0


class _Rate:
    """The progress of a build, passed on to what shows it; in the end, how fast it was."""

    def __init__(self, show: "Progress") -> None:
        self._show, self._began_s = show, time.monotonic()
        self._reports: list[tuple[float, int]] = []  # the first and the latest: when, residues

    def __call__(self, records: int, residues: int, bytes_read: int, num_bytes: int | None) -> None:
        self._reports[1:] = [(time.monotonic(), residues)]
        self._show(records, residues, bytes_read, num_bytes)

    def shown(self, num_residues: int) -> str:
        if not self._reports:
            return "none: it was there already"
        took_s = time.monotonic() - self._began_s
        (first_s, first), (last_s, last) = self._reports[0], self._reports[-1]
        # From report to report, as a build that went on began with what was there.
        rate = (last - first) / (last_s - first_s) if last_s > first_s else num_residues / took_s
        return f"{took_s:,.1f} s, {rate / 1e6:,.1f} M residues/s"


def _stats(options: argparse.Namespace) -> int:
    if options.png is not None and options.png.suffix != ".png":
        raise ValueError(f"--png is {str(options.png)!r}; the picture is PNG, so write a name that ends in .png")
    _require_at_least(3, "--crop-tokens", options.crop_tokens)
    from data.derived import written_at
    from data.disk_error import refusal
    from data.histogram import draw
    from data.statistics import as_json, lines, statistics

    store = _store(options)
    found = statistics(store)
    path = options.png or written_at(store, "lengths.png")
    # A file name need not be UTF-8, what matplotlib draws must be.
    first, *others = (os.fsencode(os.path.basename(name)).decode("utf-8", "replace") for name in store.facts["sources"])
    named = first + (f" and {len(others)} more" if others else "")
    title = f"{named}: {found.num_records:,} records, {found.num_residues:,} residues"
    try:
        with refusal(path, "choose another place"):
            if options.png is None:
                path.parent.mkdir(parents=True, exist_ok=True)
        draw(found.lengths, path, title=title, crop_tokens=options.crop_tokens)
        drawn = str(path)
    except ValueError as error:
        if options.png is not None:
            raise ValueError(f"--png {error}") from None
        path, drawn = None, f"none ({error}); say with --png where it goes"
    if options.json:
        print(json.dumps(as_json(found) | {"picture": str(path) if path else None}, indent=1))
    else:
        print("\n".join([*lines(found), f"picture      {drawn}"]))
    return 0


def _verify(options: argparse.Namespace) -> int:
    from data.store import FACTS, Store

    if not (options.store / FACTS).is_file():
        raise ValueError(f"{options.store} is no finished token store: it has no {FACTS}")
    store = Store(options.store)
    try:
        store.verify()
    except ValueError as error:
        print(f"damaged: {error}", file=sys.stderr, flush=True)
        return 1
    for name, of_file in store.facts["files"].items():
        print(f"ok  {name:<18} {of_file['bytes']:>20,} bytes")
    print(f"ok: {store.num_records:,} records, fingerprint {store.fingerprint}")
    return 0


def _head(options: argparse.Namespace) -> int:
    chosen = [name for name in ("start", "count") if getattr(options, name) is not None]
    if chosen and (options.record or options.name):
        raise ValueError("-n and --start are for the records from one on; --record and --name choose single ones")
    if options.record and options.name:
        raise ValueError("--record and --name are two ways to choose records; give one of them")
    _require_at_least(1, "-n", 10 if options.count is None else options.count)
    store = _store(options)
    if options.name:
        return _print_named(store, options.name)
    if options.record:
        records: Iterable[int] = options.record
    else:
        start, count = options.start or 0, 10 if options.count is None else options.count
        records = range(start, min(start + count, store.num_records) if start < store.num_records else start + 1)
    for record in records:
        if not 0 <= record < store.num_records:
            raise ValueError(f"record {record} is not there: {store.folder} has records 0 to {store.num_records - 1}")
        _print_record(store, record, store.headers(record, record + 1)[0])
    return 0


def _print_named(store: "Store", wanted: Sequence[str]) -> int:
    """Print the records that have one of these names, in the store's order, in one pass over its headers."""
    from data.header import names

    missing = {os.fsencode(name) for name in wanted}
    sought = frozenset(missing)
    for start in range(0, store.num_records, _BLOCK_RECORDS):
        headers = store.headers(start, min(start + _BLOCK_RECORDS, store.num_records))
        for record, header in enumerate(headers, start):
            found = sought.intersection(names(header))
            if found:
                missing -= found
                _print_record(store, record, header)
    if missing:
        raise ValueError(
            f"{store.folder} has no record named {', '.join(sorted(map(os.fsdecode, missing)))}; a name is the first "
            "word of a header, or the accession in it (P12345 of sp|P12345|NAME_HUMAN)"
        )
    return 0


def _print_record(store: "Store", record: int, header: bytes) -> None:
    letters = _letters()[store.residues(record)].tobytes()
    rows = (letters[i : i + _LINE] for i in range(0, len(letters), _LINE))
    sys.stdout.buffer.write(b"\n".join([b">" + header, *rows, b""]))


def _digest(options: argparse.Namespace) -> int:
    match = re.fullmatch(r"(\d+):(\d+)", options.steps)
    if match is None or int(match[1]) >= int(match[2]):
        raise ValueError(
            f"--steps is {options.steps!r}; write A:B with whole numbers A < B, for example 500:520 for the twenty "
            "steps from 500 to 519"
        )
    _require_at_least(1, "--world", options.world)
    _require_at_least(0, "--workers", options.workers)
    from data.digest import digest_command

    start, stop = int(match[1]), int(match[2])
    for line in digest_command(options.recipe, options.overrides, start, stop, options.world, options.workers):
        print(line, flush=True)
    return 0


def _decontaminate(options: argparse.Namespace) -> int:
    from data.homology import decontaminate_command

    print(
        decontaminate_command(
            options.training,
            options.heldout,
            options.min_identity,
            options.min_coverage,
            options.output,
            options.store_dir,
        )
    )
    return 0


_COMMANDS: dict[str, Callable[[argparse.Namespace], int]] = {
    "build": _build,
    "stats": _stats,
    "verify": _verify,
    "head": _head,
    "digest": _digest,
    "decontaminate": _decontaminate,
}


# What commands share ------------------------------------------------------------------------------


def _store(options: argparse.Namespace) -> "Store":
    """The finished store that is named, or that of the sources that are named, built if need be."""
    from data.source import resolve
    from data.store import Store

    ingest = _ingest(options)
    found = resolve(CorpusSettings(sources=tuple(options.sources)), options.unknown_letters, ingest, options.store_dir)
    if found.store is not None:
        return Store(found.store, options.store_dir)
    from data.build import open_or_build

    return open_or_build(found.sources, options.store_dir, options.unknown_letters, ingest)


def _ingest(options: argparse.Namespace) -> IngestSettings:
    return IngestSettings(**{f.name: getattr(options, f.name) for f in fields(IngestSettings)})


def _require_at_least(least: int, name: str, value: int) -> None:
    if value < least:
        raise ValueError(f"{name} is {value}; it must be at least {least}")


def _letters() -> "NDArray[np.uint8]":
    """(33,) the FASTA letter of each token; X for one that is no letter."""
    import numpy as np

    from data.alphabet import TOKENS

    return np.array([ord(token) if token.isalpha() else ord("X") for token in TOKENS], np.uint8)


if __name__ == "__main__":
    sys.exit(main())
