"""Filling: a bin's residues, gathered and masked; all of a batch that costs time, and little to send between processes.

In: where residues are, a bin, masking rates, seed. Out: `FilledBin`. Kept: nothing.
"""

import hashlib
import sys
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from data.batches.masking import corrupt
from data.order.plan import Bin
from data.recipe.settings import MaskSettings

_LITTLE_ENDIAN = sys.byteorder == "little"


class Residues(Protocol):
    """Where the residues of samples are; `data.corpus.shelves` reads them from token stores."""

    def tokens(self, documents: Bin) -> NDArray[np.uint8]:
        """(real slots,) true token ids of a bin's documents, concatenated."""


class FilledBin(NamedTuple):
    """What the model will see of one bin, and what it must predict; the tail of pad tokens left out."""

    lengths: NDArray[np.int64]
    """(documents,) tokens of each document."""
    inputs: NDArray[np.uint8]
    """(tokens,) corrupted ids of all documents, one behind the other."""
    targets: NDArray[np.int32]
    """(targets,) slots that are predicted, ascending."""
    truths: NDArray[np.uint8]
    """(targets,) their true ids."""
    digest: int
    """64 bits over everything that the bin feeds to the model: ids, crops, inputs, targets."""


def fill(residues: Residues, documents: Bin, mask: MaskSettings, seed: int) -> FilledBin:
    """Gather and mask the documents of a bin; the share of targets is the bin's, what becomes of them is `mask`'s."""
    tokens = residues.tokens(documents)
    inputs, targets = corrupt(tokens, documents, mask, seed)
    truths = tokens[targets]
    content = hashlib.sha256()  # which processors have instructions for
    fed: tuple[NDArray[Any], ...] = documents.samples, documents.starts, documents.lengths, inputs, targets, truths
    for array in fed:
        content.update(np.ascontiguousarray(array if _LITTLE_ENDIAN else array.byteswap()).data)
    return FilledBin(documents.lengths, inputs, targets, truths, int.from_bytes(content.digest()[:8], "little"))
