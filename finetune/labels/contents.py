"""Labelled contents: proteins as they are, with the labels that were observed of them.

In: residues and a label store. Out: filled bins with targets for every objective; `columns.LabelColumns` names their
columns. Kept: nothing.
"""

import numpy as np
from numpy.typing import NDArray

from data.batches.collate import BinTargets, FilledBin, ResidueReader, fill_bin
from data.batches.contents import Contents
from data.order.plan import Bin
from data.order.settings import BinSettings
from finetune.labels.store import LabelStore

_BEGIN_TOKEN = 1
"""Tokens of a document before its first residue."""


class LabelledContents(Contents):
    """Contents for fine-tuning: each label of a bin's records is a target, in training as in evaluation.

    A document that is a slice of its protein has the protein's labels, and of those of residues and pairs the ones that
    lie in the slice.

    Args:
        residues: gives the tokens of a bin.
        settings: sizes of a bin.
        store: labels of the same token store.
    """

    def __init__(self, residues: ResidueReader, settings: BinSettings, store: LabelStore) -> None:
        super().__init__(residues, settings)
        self.store = store

    def fill(self, bin_: Bin) -> FilledBin:
        """Gather the documents of a bin and their labels."""
        targets = (self._targets(objective, bin_) for objective in range(len(self.store.names)))
        return fill_bin(bin_, self.residues.tokens(bin_), *targets)

    def _targets(self, objective: int, bin_: Bin) -> BinTargets:
        """The targets of one objective: slots, labels, and the columns of `LabelColumns`."""
        records = bin_.samples
        labels = self.store.of_records(objective, records)
        first_slots = np.cumsum(bin_.lengths) - bin_.lengths
        offsets, partner = np.zeros((2, len(labels.of)), np.int64)
        place = records[labels.of]
        kept: NDArray[np.bool_] = np.ones(len(labels.of), np.bool_)
        if labels.positions is not None:
            positions = np.atleast_2d(labels.positions.T).T  # one column, or two for pairs
            in_slice = positions + (_BEGIN_TOKEN - bin_.starts[labels.of])[:, None]
            inside = (in_slice >= 0) & (in_slice < bin_.lengths[labels.of][:, None])
            kept = np.logical_and.reduce(inside, axis=1)
            offsets, partner = in_slice[:, 0], in_slice[:, -1] - in_slice[:, 0]
            place = self.store.first_residues(records)[labels.of] + positions[:, 0]
        skips = self._linkers(records, bin_)[labels.of]
        columns = labels.outputs, labels.censoring, place, skips[:, 0], skips[:, 1], partner
        slots = (first_slots[labels.of] + offsets).astype(np.int32)
        return (slots[kept], labels.values[kept], *(column[kept] for column in columns))

    def _linkers(self, records: NDArray[np.int64], bin_: Bin) -> NDArray[np.int64]:
        """(documents, 2) first slot of each document's linker and the one after its last, from the document's first."""
        linkers = self.store.linkers(records)
        in_slice = np.clip(linkers + (_BEGIN_TOKEN - bin_.starts)[:, None], 0, bin_.lengths[:, None])
        is_there = in_slice[:, 1] > in_slice[:, 0]
        return np.where(is_there[:, None], in_slice, 0)
