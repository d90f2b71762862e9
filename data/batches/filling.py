"""Filled bins: the part of a batch that a worker makes, which takes time to compute and little to send.

In: a bin, its inputs and its targets. Out: `FilledBin`. Kept: nothing.
"""

import hashlib
import sys
from typing import Any, NamedTuple, Protocol, cast

import numpy as np
from numpy.typing import NDArray

from data.order.plan import Bin

_LITTLE_ENDIAN = sys.byteorder == "little"

BinTargets = tuple[NDArray[np.int32], NDArray[Any], *tuple[NDArray[Any], ...]]
"""One objective's targets in a bin: their slots, (targets,), rising or equal; their labels, (targets, ...); and further
columns of the job, (targets,) each, which are the same ones in each bin."""


class ResidueReader(Protocol):
    """Gives the residues of samples; `data.corpus.shelves` reads them from token stores."""

    def tokens(self, bin_: Bin) -> NDArray[np.uint8]:
        """(real slots,) true token ids of a bin's documents, concatenated."""


class FilledBin(NamedTuple):
    """What the model sees of one bin, and what it is to predict; pad tokens are left out."""

    lengths: NDArray[np.int64]
    """(documents,) number of tokens of each document."""
    inputs: NDArray[np.uint8]
    """(tokens,) token ids of all documents, concatenated and corrupted."""
    targets: tuple[BinTargets, ...]
    """The targets of each objective."""
    digest: int
    """64-bit hash of everything that the bin feeds to the model: sample ids, crops, inputs, targets."""

    def emptied(self) -> "FilledBin":
        """The same without documents and targets, as it is laid out where it is not trained; its digest is 0."""
        targets = (cast(BinTargets, tuple(column[:0] for column in each)) for each in self.targets)
        return FilledBin(self.lengths[:0], self.inputs[:0], tuple(targets), 0)


def fill_bin(bin_: Bin, inputs: NDArray[np.uint8], *targets: BinTargets) -> FilledBin:
    """The filled bin with these inputs and the targets of each objective, and with its digest."""
    content = hashlib.sha256()  # fast, as processors have instructions for it
    fed = bin_.samples, bin_.starts, bin_.lengths, inputs, *(array for arrays in targets for array in arrays)
    for array in fed:
        content.update(np.ascontiguousarray(array if _LITTLE_ENDIAN else array.byteswap()).data)
    return FilledBin(bin_.lengths, inputs, targets, int.from_bytes(content.digest()[:8], "little"))
