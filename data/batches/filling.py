"""Filled bins: what a worker makes of a bin, all of a batch that costs time and little to send between processes.

In: where residues are, a bin, and what its targets are. Out: `FilledBin`. Kept: nothing.
"""

import hashlib
import sys
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from data.order.plan import Bin

_LITTLE_ENDIAN = sys.byteorder == "little"

BinTargets = tuple[NDArray[np.int32], NDArray[Any]]
"""The slots of one objective's targets in their bin, (targets,), ascending; and their labels, (targets, ...)."""


class Residues(Protocol):
    """Where the residues of samples are; `data.corpus.shelves` reads them from token stores."""

    def tokens(self, bin_: Bin) -> NDArray[np.uint8]:
        """(real slots,) true token ids of a bin's documents, concatenated."""


class FilledBin(NamedTuple):
    """What the model will see of one bin, and what it must predict; the tail of pad tokens left out."""

    lengths: NDArray[np.int64]
    """(documents,) tokens of each document."""
    inputs: NDArray[np.uint8]
    """(tokens,) ids of all documents, concatenated; corrupted where they are to be predicted."""
    targets: tuple[BinTargets, ...]
    """One for each objective."""
    digest: int
    """64 bits over everything that the bin feeds to the model: ids, crops, inputs, targets."""


def filled(bin_: Bin, inputs: NDArray[np.uint8], *targets: BinTargets) -> FilledBin:
    """The bin with these inputs and the targets of each objective, and the digest over all of it."""
    content = hashlib.sha256()  # which processors have instructions for
    fed = bin_.samples, bin_.starts, bin_.lengths, inputs, *(array for pair in targets for array in pair)
    for array in fed:
        content.update(np.ascontiguousarray(array if _LITTLE_ENDIAN else array.byteswap()).data)
    return FilledBin(bin_.lengths, inputs, targets, int.from_bytes(content.digest()[:8], "little"))
