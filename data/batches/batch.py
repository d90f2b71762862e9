"""The batch: what the planner's bins become, and all that a model ever sees.

In: nothing; these are the types. Kept: nothing.

A *bin* is T consecutive slots. Its documents stand next to each other from slot 0; what is left at the tail is a
document of pad tokens. A batch is one or more bins, concatenated. What a model reads (`PackedSequences`) and what it is
to predict (`Targets`) are two things: an encoder gets the first alone, so that any job can bring targets of its own.

Every tensor whose length could vary with the data has a fixed length, except those of `Targets`, because recompilation
and CUDA graphs need fixed shapes.
"""

from dataclasses import dataclass, fields, replace
from typing import Any, Self

import torch
from torch import Tensor

from data.alphabet import PAD

IGNORED = -100
"""Label of a slot that is no target (the value torch's and transformers' losses ignore)."""


@dataclass(frozen=True, slots=True)
class Targets:
    """What is to be predicted for one objective. A label that is missing has no entry, so nothing can count it."""

    slots: Tensor
    """(targets,) int64: the slot that each target belongs to, ascending; made on the host, so a GPU never waits."""
    labels: Tensor
    """(targets, ...): the true value of each: for masked language modelling the int64 token id."""

    def between(self, first: int, end: int) -> "Targets":
        """The targets of the slots `[first, end)`, which keep their numbers; on the host."""
        start, stop = torch.searchsorted(self.slots, torch.tensor([first, end])).tolist()
        return Targets(self.slots[start:stop], self.labels[start:stop])

    def in_slots(self, num_slots: int) -> Tensor:
        """(num_slots, ...) labels where their targets are, `IGNORED` elsewhere: what torch's own losses take."""
        labels = self.labels.new_full((num_slots, *self.labels.shape[1:]), IGNORED)
        labels[self.slots] = self.labels
        return labels

    def to(self, device: torch.device | str) -> "Targets":
        """The same targets on `device`, copied without blocking where memory is pinned."""
        return Targets(*(tensor.to(device, non_blocking=True) for tensor in (self.slots, self.labels)))


@dataclass(frozen=True, slots=True, kw_only=True)
class PackedSequences:
    """What an encoder reads: `num_bins` bins of T slots, at most D documents a bin and one pad document each.

    Slots are counted over the whole batch: S = num_bins * T. Documents are numbered ``bin * (D + 1) + i``; numbers
    that no document uses are empty.
    """

    tokens: Tensor
    """(S,) int64: input ids, corrupted; `alphabet.PAD` in the tail of a bin."""
    positions: Tensor
    """(S,) int64: index of the slot inside its document, from 0."""
    documents: Tensor
    """(S,) int64: number of the slot's document."""
    cu_seqlens: Tensor
    """(num_bins * (D + 1) + 1,) int32: first slot of each document, then S. Empty documents repeat a boundary."""
    draw_keys: tuple[int, ...]
    """Host side: 64-bit key of each bin for whatever the model draws (dropout)."""
    spans: tuple[tuple[int, int], ...]
    """Host side: (first slot, end slot) of every real document, pad documents left out."""

    @property
    def num_bins(self) -> int:
        """Number of bins in this batch."""
        return len(self.draw_keys)

    @property
    def num_documents(self) -> int:
        """Number of document numbers, empty and pad documents included."""
        return self.cu_seqlens.numel() - 1

    def idle(self) -> Self:
        """A batch of the same shapes with nothing but pads: no document.

        For a rank without a bin in a micro-batch that all ranks must compute together.
        """
        slots, documents = self.tokens.numel() // self.num_bins, self.num_documents // self.num_bins
        bins = torch.arange(self.num_bins)
        boundaries = torch.full((self.num_documents + 1,), self.tokens.numel(), dtype=self.cu_seqlens.dtype)
        boundaries[:-1] = (bins[:, None] + 1).repeat(1, documents).flatten() * slots
        boundaries[:-1:documents] = bins * slots  # the pad document of a bin is its first here, and fills it
        return replace(
            self,
            tokens=torch.full_like(self.tokens, PAD),
            positions=torch.arange(slots).repeat(self.num_bins),
            documents=(bins * documents).repeat_interleave(slots),
            cu_seqlens=boundaries,
            draw_keys=(0,) * self.num_bins,
            spans=(),
        )

    def to(self, device: torch.device | str) -> Self:
        """The same batch with what a model reads on `device`, copied without blocking where memory is pinned."""
        moved: dict[str, Any] = {
            f.name: value.to(device, non_blocking=True)
            for f in fields(PackedSequences)
            if isinstance(value := getattr(self, f.name), Tensor)
        }
        return replace(self, **moved)


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch(PackedSequences):
    """Bins for one forward pass, with what is to be predicted of them."""

    targets: tuple[Targets, ...]
    """One for each objective of the job, in its order; one alone for masked language modelling."""
    digests: Tensor
    """(num_bins,) int64: 64-bit digest of each bin's documents, inputs and labels, for the sample chain."""

    @property
    def counts(self) -> Tensor:
        """(objectives,) int64: number of targets of each objective; on the host."""
        return torch.tensor([targets.slots.numel() for targets in self.targets])

    def share(self, rank: int, size: int) -> "Batch":
        """The same batch for one of `size` ranks that share it: whole, but for targets, which are its own slots' alone.

        For a batch on the host. `Targets.slots` keep their numbers in the whole batch.

        Raises:
            ValueError: the slots cannot be shared evenly.
        """
        if size == 1:
            return self
        span = span_of_rank(self.tokens.numel(), rank, size)
        return replace(self, targets=tuple(targets.between(*span) for targets in self.targets))

    def idle(self) -> "Batch":
        """A batch of the same shapes with nothing but pads: no document, no target, no digest."""
        return replace(
            PackedSequences.idle(self),
            targets=tuple(targets.between(0, 0) for targets in self.targets),
            digests=torch.zeros_like(self.digests),
        )

    def to(self, device: torch.device | str) -> "Batch":
        """As `PackedSequences.to`; `digests` stay where they are, because the step sums them on the host."""
        return replace(PackedSequences.to(self, device), targets=tuple(each.to(device) for each in self.targets))


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
