"""`python -m data build`: sources to a token store."""

import argparse
import time
from collections.abc import Sequence

from data.commands.opening import ingest_of
from data.progress_line import BuildLine
from data.recipe.settings import CorpusSettings
from data.sources.block import Source
from data.sources.resolve import STANDARD_INPUT, resolve, standard_input
from data.store.build import Progress, build_into, open_or_build
from data.store.token_store import REJECTED


def run(options: argparse.Namespace) -> int:
    """Read the sources, and say what the store holds; the exit status."""
    ingest, letters = ingest_of(options), options.unknown_letters
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
    with BuildLine() as line:
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

    def __init__(self, show: Progress) -> None:
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
