"""How similar the proteins that are predicted are to those that the model trained on.

In: a table of the training proteins, as a bundle holds none of them; proteins. Out: for each protein the identity to
the most similar one. Kept: nothing; token stores and files of MMseqs2 are in a temporary folder.

Variants of one protein are compared by position, others by `data.homology.relatives.nearest`.
"""

import shutil
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from data.homology.relatives import nearest, search_method
from data.settings import IngestSettings
from data.store.build import open_or_build
from data.store.token_store import TokenStore
from finetune.splits import split_file
from finetune.splits.parts import TRAIN
from finetune.splits.variants import are_variants, to_nearest
from finetune.tables.proteins import TableProteins

NAME = "nearest_train_identity"


@dataclass(frozen=True, slots=True)
class TrainingProteins:
    """The proteins that trained."""

    store: TokenStore
    records: NDArray[np.int64]
    """(M,) those of the store that trained."""
    said: tuple[str, ...]
    _work: Path
    _variants: NDArray[np.uint8] | None
    """(M, L) their residues, where they are variants of one protein."""

    @classmethod
    def of(cls, proteins: TableProteins, splits: Iterable[Path], work: Path) -> "TrainingProteins":
        """The proteins of a table that trained.

        Args:
            proteins: of the table.
            splits: split.csv of each bundle. Where they list exactly these proteins, by their digests, those that
                trained one of the models are taken; of another table, all of them.
            work: an empty folder.
        """
        store = _stored(proteins, work / "trained")
        parts = [{line.digest: line.part for line in split_file.lines_of(path).values()} for path in splits]
        everything, digests = np.arange(proteins.num_records), split_file.digest_texts(proteins.digests)
        if all(each.keys() == {*digests} for each in parts):
            has_trained = [any(each[digest] == TRAIN for each in parts) for digest in digests]
            records = everything[has_trained]
            said = f"the {len(records):,} proteins of {proteins.name} that trained"
        else:
            records = everything
            said = f"all {len(records):,} proteins of {proteins.name}, which is not the table of the training"
        variants = None
        if are_variants(store):
            variants = np.asarray(store.tokens).reshape(store.num_records, -1)[records]
        by = search_method() if variants is None else f"position; those of another length by {search_method()}"
        return cls(store, records, (f"{NAME} is to {said}, by {by}",), work, variants)

    def identities(self, proteins: TableProteins) -> NDArray[np.float64]:
        """(N,) share of equal residues in the alignment with the most similar one; 0 where none was found.

        NaN for a protein that does not find itself, as nothing is known of its relatives.
        """
        found = np.zeros(proteins.num_records)
        if not proteins.num_records or not len(self.records):
            return found
        store = _stored(proteins, self._work / "asked")
        rest = np.arange(proteins.num_records)
        if self._variants is not None:
            length = self._variants.shape[1]
            same = rest[proteins.num_residues == length]
            rest = rest[proteins.num_residues != length]
            if len(same):
                residues = np.stack([store.residues(record) for record in same.tolist()])
                found[same] = 1 - to_nearest(residues, self._variants) / length
        if len(rest):
            closest = nearest(store, rest, self.store, self.records)
            found[rest] = np.where(closest.is_searchable | (closest.identity > 0), closest.identity, np.nan)
        return found


def _stored(proteins: TableProteins, folder: Path) -> TokenStore:
    """The token store of some proteins; what the folder held is removed."""
    shutil.rmtree(folder, ignore_errors=True)
    return open_or_build([proteins], folder, "count", IngestSettings(), progress=lambda *_: None)
