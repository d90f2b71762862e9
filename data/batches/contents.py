"""Contents: what a job puts into bins. Its own part is `fill`; how filled bins become tensors is the same for all.

In: where residues are, bins of a plan. Out: `FilledBin`s in a worker, `Batch`es in the training process. Kept: nothing
but the settings.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence

from data.batches.batch import Batch
from data.batches.collate import lay_out
from data.batches.filling import FilledBin, Residues, filled
from data.batches.masking import corrupt
from data.order.plan import Bin
from data.recipe.packing import PackingSettings
from data.recipe.settings import MaskSettings


class Contents(ABC):
    """What the bins of a job hold. Workers get a copy, so that it must be cheap to pickle.

    Args:
        residues: where they are.
        settings: sizes of a bin.
    """

    def __init__(self, residues: Residues, settings: PackingSettings) -> None:
        self.residues, self.settings = residues, settings

    @abstractmethod
    def fill(self, bin_: Bin) -> FilledBin:
        """One bin's inputs and targets; runs in workers, where a job's work on residues belongs."""

    def lay_out(self, bins: Sequence[FilledBin], draw_keys: Sequence[int], *, pinned: bool = False) -> Batch:
        """The batch of some filled bins; arguments are those of `collate.lay_out`."""
        return lay_out(bins, self.settings, draw_keys, pinned=pinned)

    def batch(self, bins: Sequence[Bin], draw_keys: Sequence[int]) -> Batch:
        """Fill `bins` and lay them out."""
        return self.lay_out([self.fill(bin_) for bin_ in bins], draw_keys)


class MaskedContents(Contents):
    """Residues are masked, and the masked ones are the targets.

    Args:
        residues: where they are.
        settings: sizes of a bin.
        mask: which residues are targets, and what the model sees in their place.
        seed: keys both.
    """

    def __init__(self, residues: Residues, settings: PackingSettings, mask: MaskSettings, seed: int) -> None:
        super().__init__(residues, settings)
        self.mask, self.seed = mask, seed

    def fill(self, bin_: Bin) -> FilledBin:
        """Gather and mask the documents of a bin."""
        tokens = self.residues.tokens(bin_)
        inputs, targets = corrupt(tokens, bin_, self.mask, self.seed)
        return filled(bin_, inputs, (targets, tokens[targets]))
