"""Builders of streams from sources that are at hand, which no recipe names."""

from collections.abc import Sequence
from pathlib import Path

from data.settings import IngestSettings, LetterPolicy
from data.sources.block import Source
from data.store.growing import follow, serve
from data.store.token_store import FACTS


def start_builder_of(
    sources: Sequence[Source], unknown_letters: LetterPolicy, ingest: IngestSettings, store_dir: Path
) -> Path:
    """`start_builder` for sources that are sent to the builder by pickle."""
    return follow(serve, sources, unknown_letters, ingest, store_dir)


def is_finished(folder: Path) -> bool:
    """Whether the store in a folder is complete."""
    return (folder / FACTS).exists()
