"""Filled bins to a `Batch`: everything in flat arrays of fixed length.

In: filled bins, sizes. Out: `Batch` on the host. Kept: nothing.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from data.alphabet import PAD
from data.batches.batch import IGNORED, Batch
from data.batches.filling import FilledBin, Residues, fill
from data.compiled import compiled
from data.order.plan import Bin
from data.recipe.settings import DataSettings, MaskSettings


def collate(
    residues: Residues,
    bins: Sequence[Bin],
    settings: DataSettings,
    mask: MaskSettings,
    seed: int,
    draw_keys: Sequence[int],
) -> Batch:
    """Fill `bins` and lay them out; arguments are those of `fill` and `lay_out`."""
    return lay_out([fill(residues, documents, mask, seed) for documents in bins], settings, draw_keys)


def lay_out(
    bins: Sequence[FilledBin], settings: DataSettings, draw_keys: Sequence[int], *, pinned: bool = False
) -> Batch:
    """The batch of some filled bins.

    Args:
        bins: one or more, each with at most ``settings.bin_tokens`` tokens.
        settings: sizes of a bin.
        draw_keys: one 64-bit key a bin for the model's own randomness.
        pinned: in page-locked memory, from which a copy to a GPU does not block.
    """
    slots, documents_per_bin = settings.bin_tokens, settings.documents_per_bin
    spread = compiled(_spread) or _spread_by_arrays
    rows = _empty((4, len(bins) * slots), np.int64, pinned)
    target_slots = _empty((sum(len(b.targets) for b in bins),), np.int64, pinned)
    cu_seqlens = _empty((len(bins) * (documents_per_bin + 1) + 1,), np.int32, pinned)
    cu_seqlens[-1] = rows.shape[1]
    spans: list[tuple[int, int]] = []
    placed = 0
    for index, filled in enumerate(bins):
        first, first_document = index * slots, index * (documents_per_bin + 1)
        spread(rows[:, first : first + slots], *filled[:4], first_document)
        np.add(filled.targets, first, out=target_slots[placed : placed + len(filled.targets)])
        placed += len(filled.targets)
        ends = (np.cumsum(filled.lengths) + first).tolist()
        starts = [first, *ends[:-1]]
        # The pad tail counts as one more document, which starts where the last real one ends.
        block = cu_seqlens[first_document : first_document + documents_per_bin + 1]
        block[: len(ends)] = starts
        block[len(ends)] = ends[-1]
        block[len(ends) + 1 :] = first + slots
        spans += zip(starts, ends, strict=True)
    tokens, labels, positions, documents = torch.from_numpy(rows)
    return Batch(
        tokens=tokens,
        labels=labels,
        positions=positions,
        documents=documents,
        cu_seqlens=torch.from_numpy(cu_seqlens),
        target_slots=torch.from_numpy(target_slots),
        counts=torch.from_numpy(np.array([placed])),
        draw_keys=tuple(draw_keys),
        digests=torch.from_numpy(np.array([b.digest for b in bins], np.uint64).view(np.int64)),
        spans=tuple(spans),
    )


def _empty(shape: tuple[int, ...], dtype: type[np.integer], pinned: bool) -> NDArray[Any]:
    if not pinned:
        return np.empty(shape, dtype)
    made = torch.empty(shape, dtype=torch.from_numpy(np.empty(0, dtype)).dtype, pin_memory=True)
    return np.asarray(made.numpy())


def _spread_by_arrays(
    flat: NDArray[np.int64],
    lengths: NDArray[np.int64],
    inputs: NDArray[np.uint8],
    targets: NDArray[np.int32],
    truths: NDArray[np.uint8],
    first_document: int,
) -> None:
    """Write tokens, labels, positions and documents of one bin into the four rows of `flat`."""
    slots, used = flat.shape[1], len(inputs)
    flat[0, :used] = inputs
    flat[0, used:] = PAD
    flat[1] = IGNORED
    flat[1, targets] = truths
    every = np.append(lengths, slots - used)
    flat[2] = np.arange(slots) - np.repeat(np.cumsum(every) - every, every)
    flat[3] = first_document + np.repeat(np.arange(len(every)), every)


def _spread(flat, lengths, inputs, targets, truths, first_document):  # type: ignore[no-untyped-def]
    slot, one = np.uint64(0), np.uint64(1)
    for document in range(len(lengths)):
        for position in range(lengths[document]):
            flat[0, slot] = inputs[slot]
            flat[2, slot] = position
            flat[3, slot] = first_document + document
            slot += one
    used = np.int64(slot)
    for tail in range(used, flat.shape[1]):
        flat[0, tail] = PAD
        flat[2, tail] = tail - used
        flat[3, tail] = first_document + len(lengths)
    flat[1] = IGNORED
    for index in range(len(targets)):
        flat[1, targets[index]] = truths[index]
