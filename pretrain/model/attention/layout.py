"""Where the documents of a batch are, in the form that a backend reads.

In: a batch. Out: a `Layout`, made once for each forward pass and read by every layer. Nothing is kept.
"""

from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor

from data.batch import Batch
from pretrain.model.attention.choice import Backend

_SHORTEST = 128
"""Rows that a block of the GPU kernel takes; nothing is gained by a finer bound than this."""


class Layout(NamedTuple):
    """Documents of a batch, in the form that one backend reads and in those that cost nothing."""

    backend: Backend
    spans: Tensor
    """(documents, 2) int64 on the host: first slot and end slot of each real document. A tensor and no tuple, so that
    a compiled layer is not compiled anew for each batch."""
    boundaries: Tensor | None
    """For `varlen`, (N + 1,) int32 on the device: where documents and stretches of pads begin, then S, repeated until N
    is a power of two."""
    longest: int
    """At least the length of the longest document, pads included; a power of two, because a compiled layer is compiled
    anew for each value."""
    documents: Tensor
    """(num_bins, T) int64 on the device: number of each slot's document."""


def layout_of(batch: Batch, backend: Backend) -> Layout:
    """The layout of `batch` for `backend`; waits for no device."""
    slots = batch.tokens.numel()
    # One stretch of pads may lie over several bins; that pads see one another is nobody's concern.
    edges = sorted({0, slots, *(edge for span in batch.spans for edge in span)})
    return Layout(
        backend,
        torch.tensor(batch.spans, dtype=torch.int64).view(-1, 2),
        _boundaries(edges, batch.tokens.device) if backend == "varlen" else None,
        _power_of_two(max([_SHORTEST, *(end - start for start, end in pairwise(edges))])),
        batch.documents.view(batch.num_bins, -1),
    )


def _boundaries(edges: list[int], device: torch.device) -> Tensor:
    # Not the batch's own `cu_seqlens`: that has room for a document in every 8 slots, and the kernel starts blocks of
    # threads for the empty ones too.
    boundaries = torch.full((_power_of_two(len(edges) - 1) + 1,), edges[-1], dtype=torch.int32)
    boundaries[: len(edges)] = torch.tensor(edges)
    if device.type == "cuda":
        boundaries = boundaries.pin_memory()
    return boundaries.to(device, non_blocking=True)


def _power_of_two(least: int) -> int:
    return 1 << (least - 1).bit_length()
