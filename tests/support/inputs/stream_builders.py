"""Builders of streams from sources that are at hand, which no recipe names."""

from pathlib import Path

from data.store.growing import start_builder as start_builder_of
from data.store.token_store import FACTS

__all__ = ["is_finished", "start_builder_of"]


def is_finished(folder: Path) -> bool:
    """Whether the store in a folder is complete."""
    return (folder / FACTS).exists()
