"""`python -m data build`: sources to a token store; `store_of` opens, or builds, the store for `head` and `stats`."""

import argparse
from dataclasses import fields

from data.corpus.stores import open_store
from data.settings import CorpusSettings, IngestSettings
from data.sources.resolve import resolve
from data.store.build import build_into, format_rejected, open_or_build
from data.store.token_store import REJECTED, TokenStore
from zymogen.console.progress import BuildProgress


def store_of(options: argparse.Namespace) -> TokenStore:
    """The store of a command with the options for reading."""
    return open_store(options.sources, options.unknown_letters, ingest_of(options), options.store_dir, options.format)


def ingest_of(options: argparse.Namespace) -> IngestSettings:
    """The options for reading, as settings of a recipe."""
    return IngestSettings(**{f.name: getattr(options, f.name) for f in fields(IngestSettings)})


def run(options: argparse.Namespace) -> int:
    """Read the sources, print what the store holds, and return the exit status."""
    ingest, letters = ingest_of(options), options.unknown_letters
    corpus = CorpusSettings(sources=tuple(options.sources), format=options.format)
    found = resolve(corpus, letters, ingest, options.store_dir)
    if found.store is not None:
        raise ValueError(f"{found.store} is a finished store; there is nothing to build")
    with BuildProgress() as line:
        if options.output is not None:
            store = build_into(options.output, found.sources, letters, ingest, progress=line)
        else:
            store = open_or_build(found.sources, options.store_dir, letters, ingest, progress=line)
    print(f"store        {store.folder}")
    print(f"records      {store.num_records:,}")
    print(f"residues     {store.total_residues:,}")
    print(f"fingerprint  {store.fingerprint}")
    if store.rejected:
        print(f"left out     {format_rejected(store.rejected)}: {store.folder / REJECTED}")
    if store.unknown_letters:
        counted = ", ".join(f"{letter} {times:,}" for letter, times in store.unknown_letters.items())
        print(f"as <unk>     {counted}")
    print(f"time         {line.summary(store.total_residues)}")
    return 0
