"""Where the documents of a batch are, in the form that a backend reads.

In: a batch. Out: a `Layout`, made once for each forward pass and read by every layer. Nothing is kept.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from data.batch import Batch
from pretrain.model.attention.choice import Backend

_SHORTEST = 128
"""Rows that a block of the GPU kernel takes; nothing is gained by a finer bound than this."""


class Layout(NamedTuple):
    """Documents of a batch; what the backend does not read is left as it was cheapest to make."""

    backend: Backend
    spans: Tensor
    """(documents, 2) int64 on the host: first slot and end slot of each real document. A tensor and no tuple, so that
    a compiled layer is not compiled anew for each batch."""
    cu_seqlens: Tensor
    """(N + 1,) int32 on the device: boundaries of all documents, pad documents and empty ones included."""
    longest: int
    """At least the length of the longest document, pads included; a power of two, because a compiled layer is compiled
    anew for each value."""
    documents: Tensor
    """(num_bins, T) int64 on the device: number of each slot's document."""


def layout_of(batch: Batch, backend: Backend) -> Layout:
    """The layout of `batch` for `backend`."""
    return Layout(
        backend,
        torch.tensor(batch.spans, dtype=torch.int64).view(-1, 2),
        batch.cu_seqlens,
        _longest(batch.spans, batch.tokens.numel()),
        batch.documents.view(batch.num_bins, -1),
    )


def _longest(spans: tuple[tuple[int, int], ...], num_slots: int) -> int:
    """Power of two that no document and no stretch of pads exceeds; a stretch over several bins counts whole."""
    longest, reached = _SHORTEST, 0
    for start, end in spans:
        longest = max(longest, end - start, start - reached)
        reached = end
    return 1 << (max(longest, num_slots - reached) - 1).bit_length()
