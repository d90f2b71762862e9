"""The columns that a target of fine-tuning has besides its slot and its label.

In: nothing; this is the type. Kept: nothing. `contents.LabelledContents` fills them in; heads, losses and predictions
read them as ``LabelColumns(*targets.columns)``.
"""

from typing import NamedTuple

from torch import Tensor


class LabelColumns(NamedTuple):
    """What each target of an objective belongs to; each column is (targets,), in the order of `Targets.slots`.

    The slot of a label of a whole sequence is the first slot of its document; that of a residue's, the residue's own;
    that of a pair's, its first residue's. A sequence with labels of several outputs has a target for each. `labels` are
    float32: numbers in the task's scale before z-scores, or indices of classes.
    """

    outputs: Tensor
    """int64: which output (task) of the objective the label is of."""
    censoring: Tensor
    """int8: `labels.EXACT`; `BELOW` where the true value is below the label, `ABOVE` where it is above."""
    place: Tensor
    """int64: the row of a cache of features: the record's number; for residues and pairs, the (first) residue's index
    in the token store."""
    skip_start: Tensor
    """int64: slots from the document's first slot to a linker between two joined chains, which is neither pooled nor
    labelled; 0 where there is none."""
    skip_end: Tensor
    """int64: slots from the document's first slot to the end of the linker; 0 where there is none."""
    partner: Tensor
    """int64: slots from the first residue of a pair to its second; 0 for other levels."""
