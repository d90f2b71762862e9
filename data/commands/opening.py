"""What commands share: the store that their arguments name is opened, or built if it does not exist yet."""

import argparse
from dataclasses import fields

from data.corpus.stores import open_store
from data.settings import IngestSettings
from data.store.token_store import TokenStore


def store_of(options: argparse.Namespace) -> TokenStore:
    """The store of a command with the options for reading."""
    return open_store(options.sources, options.unknown_letters, ingest_of(options), options.store_dir)


def ingest_of(options: argparse.Namespace) -> IngestSettings:
    """The options for reading, as settings of a recipe."""
    return IngestSettings(**{f.name: getattr(options, f.name) for f in fields(IngestSettings)})
