"""Small token stores, for tests of what stands on them."""

from collections.abc import Iterable
from pathlib import Path

from data.build import open_or_build
from data.fasta import FastaSource
from data.settings import IngestSettings
from data.store import Store


def store_of(folder: Path, proteins: Iterable[tuple[str, str]]) -> Store:
    """The store of proteins given as (header, letters)."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "proteins.fasta"
    path.write_text("".join(f">{header}\n{letters}\n" for header, letters in proteins))
    return store_from(path, folder)


def store_from(path: Path, store_dir: Path) -> Store:
    """The store of a FASTA file."""
    limits = IngestSettings()
    return open_or_build([FastaSource(str(path), "refuse", limits)], store_dir, "refuse", limits)
