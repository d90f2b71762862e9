"""Where the documents of a batch are, in the form that a backend reads, and the angles of their positions.

In: a batch. Out: a `Layout`, made once for each forward pass and read by every layer; queries and keys turned by the
angles of their slots. Nothing is kept.

Rotary positions (Su et al., 2021, arXiv:2104.09864) in ESM's non-interleaved form: channel i turns with i + K/2.
Frequencies are a function of the shape, not a buffer, because a buffer that no checkpoint holds is uninitialised memory
after `to_empty`, and one that a checkpoint holds is rounded by `model.to(bfloat16)`.

Shapes: S slots of the batch, H heads, K channels of a head.
"""

from functools import lru_cache
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor

from data.batches.batch import PackedSequences
from pretrain.model.attention.choice import Backend
from pretrain.model.context import ContextShard, Exchange
from pretrain.model.presets import EsmShape, RotaryPrecision

_SHORTEST = 128
"""Rows that a block of the GPU kernel takes; nothing is gained by a finer bound than this."""


class Layout(NamedTuple):
    """Documents of a batch, in the form that one backend reads and in those that cost nothing."""

    backend: Backend
    spans: Tensor
    """(documents, 2) int64 on the host: first slot and end slot of each real document. A tensor and no tuple, so that
    a compiled layer is not compiled again for each batch."""
    boundaries: Tensor | None
    """For `varlen`, (N + 1,) int32 on the device: where documents and stretches of pads begin, then S, repeated until N
    is a power of two."""
    longest: int
    """At least the length of the longest document, pads included; a power of two, because a compiled layer is compiled
    again for each value."""
    documents: Tensor
    """(num_bins, T) int64 on the device: number of each slot's document."""
    query_boundaries: Tensor | None
    """Like `boundaries`, for the queries of the same stretches: those of this rank, counted from `first_query`."""
    first_query: int
    """Slot of the first query; above 0 where keys and values are gathered and queries are not."""
    exchange: Exchange | None
    """How ranks that share the batch come together in attention; None where this one has all slots."""
    group: str
    """Name of those ranks' group, for `exchange`; empty where there is none."""


def layout_of(batch: PackedSequences, backend: Backend, context: ContextShard | None = None) -> Layout:
    """The layout of `batch` for `backend`, on one of the ranks that share it; waits for no device."""
    slots = batch.tokens.numel()
    # One stretch of pads may lie over several bins; that pads see one another is nobody's concern.
    edges = sorted({0, slots, *(edge for span in batch.spans for edge in span)})
    first, end = context.span(slots) if context and context.exchange == "all_gather" else (0, slots)
    boundaries = query_boundaries = None
    if backend == "varlen":
        boundaries = query_boundaries = _boundaries(edges, batch.tokens.device)
        if end - first < slots:  # stretches without a query get an empty one: the kernel takes it
            of_queries = [min(max(edge, first), end) - first for edge in edges]
            query_boundaries = _boundaries(of_queries, batch.tokens.device)
    return Layout(
        backend,
        torch.tensor(batch.spans, dtype=torch.int64).view(-1, 2),
        boundaries,
        _power_of_two(max([_SHORTEST, *(end - start for start, end in pairwise(edges))])),
        batch.documents.view(batch.num_bins, -1),
        query_boundaries,
        first,
        context.exchange if context else None,
        context.name if context else "",
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


BASE = 10000.0
"""Slowest wavelength over 2 pi, in residues."""


@lru_cache(maxsize=64)
def frequencies(head_dim: int, precision: RotaryPrecision, device: torch.device) -> Tensor:
    """Angle per residue of each pair of channels, ``(K / 2,)`` float32 on `device`.

    Computed on the host, because a power differs in its last bit between devices and is multiplied by the position;
    the copy to the device is made once per process.
    """
    pairs = torch.arange(0, head_dim, 2, dtype=torch.float32, device="cpu")
    exact = 1.0 / (BASE ** (pairs / head_dim))
    rounded: Tensor = exact.to(getattr(torch, precision)).float()
    return rounded.to(device)


def rotation(positions: Tensor, shape: EsmShape) -> tuple[Tensor, Tensor]:
    """Cosines and sines of the angles of every slot.

    Args:
        positions: ``(S,)`` int64, index of each slot inside its document.
        shape: gives the channels per head and the precision of the frequencies.

    Returns:
        cos and sin, each ``(S, 1, K / 2)`` float32.
    """
    step = frequencies(shape.head_dim, shape.rotary_precision, positions.device)
    angles = (positions.float()[:, None] * step)[:, None, :]
    return angles.cos(), angles.sin()


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Turn queries or keys `x` ``(S, H, K)`` by the angles of their slots; same shape and dtype as `x`.

    It is computed in float32, or in float64 if `x` has that.
    """
    first, second = x.to(torch.promote_types(x.dtype, torch.float32)).chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1).to(x.dtype)
