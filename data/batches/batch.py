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

from data.alphabet import PAD

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

    def share(self, rank: int, size: int) -> "Batch":
        """The same batch for one of `size` ranks that share it: whole, but for targets, which are its own slots' alone.

        For a batch on the host. `target_slots` keep their numbers in the whole batch.

        Raises:
            ValueError: the slots cannot be shared evenly.
        """
        if size == 1:
            return self
        span = torch.tensor(span_of_rank(self.tokens.numel(), rank, size))
        first, end = torch.searchsorted(self.target_slots, span).tolist()
        return replace(self, target_slots=self.target_slots[first:end], counts=torch.tensor([end - first]))

    def idle(self) -> "Batch":
        """A batch of the same shapes with nothing but pads: no document, no target, no digest.

        For a rank without a bin in a round that all ranks must compute together.
        """
        slots, documents = self.tokens.numel() // self.num_bins, self.num_documents // self.num_bins
        bins = torch.arange(self.num_bins)
        boundaries = torch.full((self.num_documents + 1,), self.tokens.numel(), dtype=self.cu_seqlens.dtype)
        boundaries[:-1] = (bins[:, None] + 1).repeat(1, documents).flatten() * slots
        boundaries[:-1:documents] = bins * slots  # the pad document of a bin is its first here, and fills it
        return replace(
            self,
            tokens=torch.full_like(self.tokens, PAD),
            labels=torch.full_like(self.labels, IGNORED),
            positions=torch.arange(slots).repeat(self.num_bins),
            documents=(bins * documents).repeat_interleave(slots),
            cu_seqlens=boundaries,
            target_slots=self.target_slots[:0],
            counts=torch.zeros_like(self.counts),
            draw_keys=(0,) * self.num_bins,
            digests=torch.zeros_like(self.digests),
            spans=(),
        )

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


def span_of_rank(slots: int, rank: int, size: int) -> tuple[int, int]:
    """First and end slot of what one of `size` ranks computes of a batch that they share.

    Raises:
        ValueError: `slots` cannot be shared evenly.
    """
    if slots % size:
        raise ValueError(
            f"a batch of {slots} slots cannot be shared by {size} ranks evenly: data.bin_tokens must be a multiple of "
            f"parallel.context, {size}; change one of them"
        )
    return rank * slots // size, (rank + 1) * slots // size
