"""Hidden residues with everything that a predictor may see of their proteins.

In: a bin of documents, and which of their residues are hidden. Out: `HiddenResidues`. Kept: nothing.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from data.alphabet import IS_TARGET, TOKENS
from data.batches.contents import MaskedContents
from data.order.plan import Bin

LETTERS = np.flatnonzero(IS_TARGET)
"""(K,) token ids that may be hidden; what is predicted is a place in this list."""
NUM_LETTERS = len(LETTERS)
REACH = 10
"""How many tokens are seen on each side of a hidden one."""
_OUTSIDE = len(TOKENS)
"""What stands where a document has no token."""
NEIGHBOUR_KINDS = _OUTSIDE + 1
_DISTANCES = 11
"""Distances to an end fall into classes: 1, 2 to 3, 4 to 7 and so on, up to 1,024 and more."""
NUM_FEATURES = 2 * REACH * NEIGHBOUR_KINDS + 2 * _DISTANCES
FEATURES_EACH = 2 * REACH + 2

_LETTER_OF = np.full(len(TOKENS), -1, np.int64)
_LETTER_OF[LETTERS] = np.arange(NUM_LETTERS)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class HiddenResidues:
    """n hidden residues of d documents, those of a document one after the other."""

    samples: NDArray[np.int64]
    """(d,) sample id of each document."""
    counts: NDArray[np.int64]
    """(d, K) how often each letter is seen in the document; hidden ones are not counted."""
    documents: NDArray[np.int64]
    """(n,) place of the document of each hidden residue, rising."""
    truths: NDArray[np.int64]
    """(n,) which letter it is, as a place in `LETTERS`."""
    features: NDArray[np.int32]
    """(n, FEATURES_EACH) which of `NUM_FEATURES` are 1: for each neighbour its token, for each end of the document the
    class of the distance to it. Features of different columns have different numbers."""

    def __len__(self) -> int:
        return len(self.truths)


def hidden_residues(bin_: Bin, contents: MaskedContents) -> HiddenResidues:
    """The targets of a bin of any size.

    Args:
        bin_: of whole documents.
        contents: gives tokens and targets; every target must be shown as <mask>.
    """
    filled = contents.fill(bin_)
    (targets, truths, *_), *_ = filled.targets
    slots, lengths = targets.astype(np.int64), bin_.lengths
    of_slots = np.repeat(np.arange(len(lengths)), lengths)
    documents = of_slots[slots]
    letters = _LETTER_OF[filled.inputs]
    seen = letters >= 0
    counts = np.bincount(of_slots[seen] * NUM_LETTERS + letters[seen], minlength=len(lengths) * NUM_LETTERS)

    # Documents side by side with gaps, so that a window never reaches into the next one.
    apart = np.full(len(letters) + REACH * (len(lengths) + 1), _OUTSIDE, np.int32)
    apart[np.arange(len(letters)) + REACH * (of_slots + 1)] = filled.inputs
    offsets = np.concatenate([np.arange(-REACH, 0), np.arange(1, REACH + 1)])
    windows = apart[(slots + REACH * (documents + 1))[:, None] + offsets]
    windows += NEIGHBOUR_KINDS * np.arange(2 * REACH, dtype=np.int32)

    before = slots - (np.cumsum(lengths) - lengths)[documents]
    distances = np.stack([before + 1, lengths[documents] - before], axis=1)
    classes = np.minimum(np.log2(distances).astype(np.int32), _DISTANCES - 1)
    classes += 2 * REACH * NEIGHBOUR_KINDS + _DISTANCES * np.arange(2, dtype=np.int32)
    return HiddenResidues(
        samples=bin_.samples,
        counts=counts.reshape(len(lengths), NUM_LETTERS),
        documents=documents,
        truths=_LETTER_OF[truths],
        features=np.concatenate([windows, classes], axis=1),
    )
