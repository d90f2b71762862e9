"""Contents: what a job puts into bins. A job defines `fill`; filled bins become tensors in the same way for all jobs.

In: residues, bins of a plan. Out: `FilledBin`s in a worker, `Batch`es in the training process. Kept: only the settings.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from types import MappingProxyType

from data.batches.batch import Batch
from data.batches.collate import FilledBin, ResidueReader, collate, fill_bin
from data.batches.masking import MaskPolicy
from data.order.plan import Bin
from data.order.settings import BinSettings


class Contents(ABC):
    """What the bins of a job hold. Workers get a copy, so it must be cheap to pickle.

    Args:
        residues: gives the tokens of a bin.
        settings: sizes of a bin.
    """

    files: Mapping[str, str] = MappingProxyType({})
    """SHA-256 of files of the user's that a worker must find as they are (`zymogen.settings.extension.files_of`)."""

    def __init__(self, residues: ResidueReader, settings: BinSettings) -> None:
        self.residues, self.settings = residues, settings

    @abstractmethod
    def fill(self, bin_: Bin) -> FilledBin:
        """The inputs and targets of a bin. It runs in workers, so a job's work on residues belongs here."""

    def lay_out(self, bins: Sequence[FilledBin], draw_keys: Sequence[int], *, pinned: bool = False) -> Batch:
        """The batch of some filled bins; the arguments are those of `collate.collate`."""
        return collate(bins, self.settings, draw_keys, pinned=pinned)

    def batch(self, bins: Sequence[Bin], draw_keys: Sequence[int]) -> Batch:
        """Fill `bins` and lay them out."""
        return self.lay_out([self.fill(bin_) for bin_ in bins], draw_keys)


class MaskedContents(Contents):
    """Contents for masked language modelling: some residues are corrupted, and these are the targets.

    Args:
        residues: gives the tokens of a bin.
        settings: sizes of a bin.
        mask: which residues are targets, and what the model sees in their place.
        seed: seed of the run, which keys its draws.
    """

    def __init__(self, residues: ResidueReader, settings: BinSettings, mask: MaskPolicy, seed: int) -> None:
        super().__init__(residues, settings)
        self.mask, self.seed = mask, seed

    def fill(self, bin_: Bin) -> FilledBin:
        """Gather and mask the documents of a bin."""
        tokens = self.residues.tokens(bin_)
        inputs, targets = self.mask.corrupt(tokens, bin_, self.seed)
        return fill_bin(bin_, inputs, (targets, tokens[targets]))
