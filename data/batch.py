"""The batch: what the planner's bins become, and all that the model ever sees.

In: nothing; this is the type. Kept: nothing.

A *bin* is T consecutive slots. Its documents stand one behind the other from slot 0; what is left at the tail is a
document of pad tokens. A batch is one or more bins, concatenated. Every tensor whose length could vary with the data
has a fixed length, except `target_slots`, because recompilation and CUDA graphs need fixed shapes.
"""

from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from torch import Tensor

IGNORED = -100
"""Label of a slot that is no target (the value torch's and transformers' losses ignore)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """Bins for one forward pass: `num_bins` bins of T slots, at most D documents a bin and one pad document each.

    Slots are counted over the whole batch: S = num_bins * T. Documents are numbered ``bin * (D + 1) + i``; numbers
    that no document uses are empty.
    """

    tokens: Tensor
    """(S,) int64: input ids, corrupted; `alphabet.PAD` in the tail of a bin."""
    labels: Tensor
    """(S,) int64: the true id where a slot is a target, else `IGNORED`."""
    positions: Tensor
    """(S,) int64: index of the slot inside its document, from 0."""
    documents: Tensor
    """(S,) int64: number of the slot's document."""
    cu_seqlens: Tensor
    """(num_bins * (D + 1) + 1,) int32: first slot of each document, then S. Empty documents repeat a boundary."""
    target_slots: Tensor
    """(targets,) int64: the slots whose label is not `IGNORED`, ascending; on the host's side of a copy, no sync."""
    counts: Tensor
    """(objectives,) int64: number of targets of each objective; length 1 for masked language modelling."""
    draw_keys: tuple[int, ...]
    """Host side: 64-bit key of each bin for whatever the model draws (dropout)."""
    digests: Tensor
    """(num_bins,) int64: 64-bit digest of each bin's documents, inputs and labels, for the sample chain."""
    spans: tuple[tuple[int, int], ...]
    """Host side: (first slot, end slot) of every real document, pad documents left out."""

    @property
    def num_bins(self) -> int:
        """Number of bins in this batch."""
        return self.digests.numel()

    @property
    def num_documents(self) -> int:
        """Number of document numbers, empty and pad documents included."""
        return self.cu_seqlens.numel() - 1

    def to(self, device: torch.device | str) -> "Batch":
        """The same batch with what a model reads on `device`, copied without blocking where memory is pinned.

        `counts` and `digests` stay where they are: the step sums them on the host.
        """
        moved: dict[str, Any] = {
            f.name: value.to(device, non_blocking=True)
            for f in fields(self)
            if isinstance(value := getattr(self, f.name), Tensor) and f.name not in ("counts", "digests")
        }
        return replace(self, **moved)
