"""Filled bins, and the `Batch` that is made of them, in flat arrays of fixed length.

In: bins with inputs and targets; sizes. Out: in a worker a `FilledBin` for each bin, slow to compute and small to send;
in the training process a `Batch` on the host. Kept: nothing.
"""

import hashlib
import sys
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, NamedTuple, Protocol, cast

import numpy as np
import torch
from numpy.typing import NDArray

from data.alphabet import PAD
from data.batches.batch import Batch, Targets
from data.order.plan import Bin
from data.order.settings import BinSettings
from zymogen.compiled import compiled

_LITTLE_ENDIAN = sys.byteorder == "little"

BinTargets = tuple[NDArray[np.int32], NDArray[Any], *tuple[NDArray[Any], ...]]
"""One objective's targets in a bin: their slots, (targets,), rising or equal; their labels, (targets, ...); and further
columns of the job, (targets,) each, which are the same ones in each bin."""


class ResidueReader(Protocol):
    """Gives the residues of samples; `data.corpus.reader` reads them from token stores."""

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


def collate(
    bins: Sequence[FilledBin], settings: BinSettings, draw_keys: Sequence[int], *, pinned: bool = False
) -> Batch:
    """The batch of some filled bins.

    Args:
        bins: one or more bins, each with at most ``settings.bin_tokens`` tokens.
        settings: sizes of a bin.
        draw_keys: for each bin, the 64-bit key for what the model draws.
        pinned: whether to use page-locked memory, from which a copy to a GPU does not block.
    """
    slots, documents_per_bin = settings.bin_tokens, settings.documents_per_bin
    rows = _empty((3, len(bins) * slots), np.int64, pinned)
    cu_seqlens = _empty((len(bins) * (documents_per_bin + 1) + 1,), np.int32, pinned)
    cu_seqlens[-1] = rows.shape[1]
    spans: list[tuple[int, int]] = []
    for index, filled in enumerate(bins):
        first, first_document = index * slots, index * (documents_per_bin + 1)
        compiled(_spread)(rows[:, first : first + slots], filled.lengths, filled.inputs, first_document)
        # The pad tokens are one more document, which starts where the last real one ends.
        bounds = [first, *(np.cumsum(filled.lengths) + first).tolist()]
        block = cu_seqlens[first_document : first_document + documents_per_bin + 1]
        block[: len(bounds)] = bounds
        block[len(bounds) :] = first + slots
        spans += pairwise(bounds)
    tokens, positions, documents = torch.from_numpy(rows)
    objectives = zip(*(b.targets for b in bins), strict=True)
    return Batch(
        tokens=tokens,
        positions=positions,
        documents=documents,
        cu_seqlens=torch.from_numpy(cu_seqlens),
        targets=tuple(_targets(of_bins, slots, pinned) for of_bins in objectives),
        draw_keys=tuple(draw_keys),
        digests=torch.from_numpy(np.array([b.digest for b in bins], np.uint64).view(np.int64)),
        spans=tuple(spans),
    )


def _targets(of_bins: Sequence[BinTargets], slots: int, pinned: bool) -> Targets:
    """The targets of one objective in all bins."""
    each_slots, each_labels, *each_columns = zip(*of_bins, strict=True)
    count, dtype = sum(map(len, each_slots)), each_labels[0].dtype
    places = _empty((count,), np.int64, pinned)
    labels = _empty((count, *each_labels[0].shape[1:]), np.int64 if dtype.kind in "iu" else dtype, pinned)
    np.concatenate([own + index * slots for index, own in enumerate(each_slots)], out=places)
    np.concatenate(each_labels, out=labels)
    columns = [_empty((count,), parts[0].dtype, pinned) for parts in each_columns]
    for column, parts in zip(columns, each_columns, strict=True):
        np.concatenate(parts, out=column)
    return Targets(torch.from_numpy(places), torch.from_numpy(labels), tuple(map(torch.from_numpy, columns)))


def _empty(shape: tuple[int, ...], dtype: Any, pinned: bool) -> NDArray[Any]:
    if not pinned:
        return np.empty(shape, dtype)
    made = torch.empty(shape, dtype=torch.from_numpy(np.empty(0, dtype)).dtype, pin_memory=True)
    return np.asarray(made.numpy())


def _spread(
    flat: NDArray[np.int64], lengths: NDArray[np.int64], inputs: NDArray[np.uint8], first_document: int
) -> None:
    """Write tokens, positions and documents of one bin into the three rows of `flat`."""
    slot, one = np.uint64(0), np.uint64(1)
    for document in range(len(lengths)):
        for position in range(lengths[document]):
            flat[0, slot] = inputs[slot]
            flat[1, slot] = position
            flat[2, slot] = first_document + document
            slot += one
    used = np.int64(slot)
    for tail in range(used, flat.shape[1]):
        flat[0, tail] = PAD
        flat[1, tail] = tail - used
        flat[2, tail] = first_document + len(lengths)
