"""What commands share: the store that their arguments name is opened, or built if it does not exist yet."""

import argparse
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import Literal

from data.recipe.settings import CorpusSettings, IngestSettings
from data.sources.resolve import resolve
from data.store.build import open_or_build
from data.store.token_store import Store


def opened(
    sources: Sequence[str], unknown_letters: Literal["refuse", "count"], ingest: IngestSettings, store_dir: Path
) -> Store:
    """The finished store that is named, or the store of the sources that are named, which is built if necessary.

    Raises:
        ValueError: there is no such source, or it is not a protein corpus.
    """
    found = resolve(CorpusSettings(sources=tuple(sources)), unknown_letters, ingest, store_dir)
    if found.store is not None:
        return Store(found.store, store_dir)
    return open_or_build(found.sources, store_dir, unknown_letters, ingest)


def store_of(options: argparse.Namespace) -> Store:
    """The store of a command with the options for reading."""
    return opened(options.sources, options.unknown_letters, ingest_of(options), options.store_dir)


def ingest_of(options: argparse.Namespace) -> IngestSettings:
    """The options for reading, as settings of a recipe."""
    return IngestSettings(**{f.name: getattr(options, f.name) for f in fields(IngestSettings)})


def require_at_least(least: int, name: str, value: int) -> None:
    """Refuse a number that is too small.

    Raises:
        ValueError: it is below `least`.
    """
    if value < least:
        raise ValueError(f"{name} is {value}; it must be at least {least}")
