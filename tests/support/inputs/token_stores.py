"""Small token stores, for tests of what stands on them."""

from collections.abc import Iterable
from pathlib import Path

import numpy as np

from data.alphabet import STANDARD_RESIDUES
from data.settings import IngestSettings
from data.sources.fasta import FastaSource
from data.store.build import open_or_build
from data.store.token_store import TokenStore

Proteins = list[tuple[str, str]]
"""Headers and letters."""


def proteins(count: int, seed: int = 0) -> Proteins:
    """Random proteins of 20 to 59 residues."""
    rng = np.random.default_rng(seed)
    return [(f"p{i}", "".join(rng.choice(list(STANDARD_RESIDUES), rng.integers(20, 60)))) for i in range(count)]


def changed(content: Proteins, record: int) -> Proteins:
    """The same, but for the last residue of one."""
    name, letters = content[record]
    other = "A" if letters[-1] != "A" else "C"
    return [*content[:record], (name, letters[:-1] + other), *content[record + 1 :]]


def store_of(folder: Path, proteins: Iterable[tuple[str, str]]) -> TokenStore:
    """The store of proteins given as (header, letters)."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "proteins.fasta"
    path.write_text("".join(f">{header}\n{letters}\n" for header, letters in proteins))
    return store_from(path, folder)


def store_from(path: Path, store_dir: Path) -> TokenStore:
    """The store of a FASTA file."""
    limits = IngestSettings()
    return open_or_build([FastaSource(str(path), "refuse")], store_dir, "refuse", limits)
