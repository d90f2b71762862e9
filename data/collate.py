"""Bins to a `Batch`: gather residues, add termini, mask, and lay everything out in flat arrays of fixed length.

In: a store, bins, masking rates, seed. Out: `Batch` on the host. Kept: nothing.
"""

import hashlib
from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from data.alphabet import CLS, EOS, PAD
from data.batch import IGNORED, Batch
from data.masking import corrupt
from data.plan import Bin
from data.settings import DataSettings, MaskSettings
from data.store import Store


def collate(
    store: Store,
    bins: Sequence[Bin],
    settings: DataSettings,
    mask: MaskSettings,
    seed: int,
    draw_keys: Sequence[int],
) -> Batch:
    """Fill a batch with `bins`.

    Args:
        store: where the residues are.
        bins: one or more bins, each with at most ``settings.bin_tokens`` tokens.
        settings: sizes of a bin.
        mask: the corruption; evaluation passes its own.
        seed: seed that keys the masks.
        draw_keys: one 64-bit key a bin for the model's own randomness.
    """
    slots, documents_per_bin = settings.bin_tokens, settings.documents_per_bin
    tokens = np.full(len(bins) * slots, PAD, np.uint8)
    labels = np.full(len(tokens), IGNORED, np.int64)
    positions = np.empty(len(tokens), np.int64)
    documents = np.empty(len(tokens), np.int64)
    boundaries = np.empty(len(bins) * (documents_per_bin + 1) + 1, np.int32)
    spans: list[tuple[int, int]] = []
    digests = []
    for index, packed in enumerate(bins):
        first, first_document = index * slots, index * (documents_per_bin + 1)
        ends = np.cumsum(packed.lengths)
        used = int(ends[-1])
        inputs, bin_labels = _filled(store, packed, mask, seed)
        tokens[first : first + used] = inputs
        labels[first : first + used] = bin_labels
        # The pad tail counts as one more document, which starts where the last real one ends.
        lengths = np.append(packed.lengths, slots - used)
        starts = np.append(0, ends)
        positions[first : first + slots] = np.arange(slots) - np.repeat(starts, lengths)
        documents[first : first + slots] = first_document + np.repeat(np.arange(len(lengths)), lengths)
        block = boundaries[first_document : first_document + documents_per_bin + 1]
        block[: len(starts)] = first + starts
        block[len(starts) :] = first + slots
        spans += zip((first + starts[:-1]).tolist(), (first + ends).tolist(), strict=True)
        digests.append(_digest(packed, inputs, bin_labels))
    boundaries[-1] = len(tokens)
    target_slots = np.flatnonzero(labels != IGNORED)
    return Batch(
        tokens=torch.from_numpy(tokens.astype(np.int64)),
        labels=torch.from_numpy(labels),
        positions=torch.from_numpy(positions),
        documents=torch.from_numpy(documents),
        cu_seqlens=torch.from_numpy(boundaries),
        target_slots=torch.from_numpy(target_slots),
        counts=torch.tensor([len(target_slots)]),
        draw_keys=torch.from_numpy(np.array(draw_keys, np.uint64).view(np.int64)),
        digests=torch.from_numpy(np.array(digests, np.uint64).view(np.int64)),
        spans=tuple(spans),
    )


def _filled(store: Store, packed: Bin, mask: MaskSettings, seed: int) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Corrupted inputs and labels of a bin's real tokens."""
    tokens = np.empty(packed.num_tokens, np.uint8)
    end = 0
    for sample, start, length in zip(
        packed.samples.tolist(), packed.starts.tolist(), packed.lengths.tolist(), strict=True
    ):
        residues = store.residues(sample)
        document = tokens[end : end + length]
        end += length
        # Token t of a protein is its begin token (t = 0), residue t - 1, or its end token.
        inside = residues[max(start - 1, 0) : start + length - 1]
        offset = int(start == 0)
        document[offset : offset + len(inside)] = inside
        if start == 0:
            document[0] = CLS
        if start + length == len(residues) + 2:
            document[-1] = EOS
    starts_in_bin = np.cumsum(packed.lengths) - packed.lengths
    residues_at = np.arange(len(tokens)) - np.repeat(starts_in_bin - packed.starts, packed.lengths) - 1
    return corrupt(tokens, np.repeat(packed.samples, packed.lengths), residues_at, mask, seed, packed.pass_index)


def _digest(packed: Bin, inputs: NDArray[np.uint8], labels: NDArray[np.int64]) -> int:
    """64 bits over everything that a bin feeds to the model: ids, crops, inputs, targets."""
    content = hashlib.blake2b(digest_size=8)
    for array in (packed.samples, packed.starts, packed.lengths, inputs, labels):
        content.update(array.astype(array.dtype.newbyteorder("<")).tobytes())
    return int.from_bytes(content.digest(), "little")
