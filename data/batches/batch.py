"""The batch: bins as tensors, and all that a model gets.

In: nothing; these are the types. Kept: nothing.

A *bin* is T consecutive slots. Its documents follow each other from slot 0; the slots that are left at its end are a
document of pad tokens. A batch is one or more bins, concatenated. What a model reads (`PackedSequences`) is separate
from what it is to predict (`Targets`): an encoder gets only the first, so that every job can have targets of its own.

Every tensor whose length could vary with the data has a fixed length, except those of `Targets`, because recompilation
and CUDA graphs need fixed shapes.
"""

from dataclasses import dataclass, fields, replace
from typing import Any, Self

import torch
from torch import Tensor

from data.alphabet import PAD

IGNORED = -100
"""Label of a slot that is not a target (the value that the losses of torch and transformers ignore)."""


@dataclass(frozen=True, slots=True)
class Targets:
    """The targets of one objective. A label that is missing has no entry, so that it cannot be counted."""

    slots: Tensor
    """(targets,) int64: the slot of each target, rising or equal; made on the host, so that a GPU never waits."""
    labels: Tensor
    """(targets, ...): the true value of each target; for masked language modelling the int64 token id."""
    columns: tuple[Tensor, ...] = ()
    """Further columns, (targets,) each, that a job's contents gave; masked language modelling has none."""

    def between(self, first: int, end: int) -> "Targets":
        """The targets in the slots `[first, end)`, which keep their numbers; on the host."""
        start, stop = torch.searchsorted(self.slots, torch.tensor([first, end])).tolist()
        cut = (column[start:stop] for column in self.columns)
        return Targets(self.slots[start:stop], self.labels[start:stop], tuple(cut))

    def in_slots(self, num_slots: int) -> Tensor:
        """(num_slots, ...) labels at the slots of targets, `IGNORED` elsewhere, as torch's own losses take them."""
        labels = self.labels.new_full((num_slots, *self.labels.shape[1:]), IGNORED)
        labels[self.slots] = self.labels
        return labels

    def to(self, device: torch.device | str) -> "Targets":
        """The same targets on `device`; from pinned memory, the copy does not block."""
        moved = (tensor.to(device, non_blocking=True) for tensor in (self.slots, self.labels, *self.columns))
        slots, labels, *columns = moved
        return Targets(slots, labels, tuple(columns))


@dataclass(frozen=True, slots=True, kw_only=True)
class PackedSequences:
    """What an encoder reads: `num_bins` bins of T slots, each with at most D documents and a pad document.

    Slots are counted over the whole batch: S = num_bins * T. Documents are numbered ``bin * (D + 1) + i``; numbers
    that no document uses are empty.
    """

    tokens: Tensor
    """(S,) int64: input ids, corrupted; `alphabet.PAD` in the free slots at the end of a bin."""
    positions: Tensor
    """(S,) int64: index of the slot inside its document, from 0."""
    documents: Tensor
    """(S,) int64: number of the document of each slot."""
    cu_seqlens: Tensor
    """(num_bins * (D + 1) + 1,) int32: first slot of each document, then S. Empty documents repeat a boundary."""
    draw_keys: tuple[int, ...]
    """On the host: 64-bit key of each bin for what the model draws (dropout)."""
    spans: tuple[tuple[int, int], ...]
    """On the host: (first slot, end slot) of every document, pad documents left out."""

    @property
    def num_bins(self) -> int:
        """Number of bins in this batch."""
        return len(self.draw_keys)

    @property
    def num_documents(self) -> int:
        """Number of document numbers, empty and pad documents included."""
        return self.cu_seqlens.numel() - 1

    def idle(self) -> Self:
        """A batch of the same shapes with pad tokens only: no document.

        It is for a rank without a bin in a micro-batch that all ranks must compute together.
        """
        slots, documents = self.tokens.numel() // self.num_bins, self.num_documents // self.num_bins
        bins = torch.arange(self.num_bins)
        boundaries = torch.full((self.num_documents + 1,), self.tokens.numel(), dtype=self.cu_seqlens.dtype)
        boundaries[:-1] = (bins[:, None] + 1).repeat(1, documents).flatten() * slots
        boundaries[:-1:documents] = bins * slots  # the first document of a bin is its pad document, and fills it
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
        """The same batch with its tensors on `device`; from pinned memory, the copy does not block."""
        moved: dict[str, Any] = {
            f.name: value.to(device, non_blocking=True)
            for f in fields(PackedSequences)
            if isinstance(value := getattr(self, f.name), Tensor)
        }
        return replace(self, **moved)


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch(PackedSequences):
    """Bins for one forward pass, with their targets."""

    targets: tuple[Targets, ...]
    """The targets of each objective, in the order of the job; masked language modelling has only one."""
    digests: Tensor
    """(num_bins,) int64: 64-bit digest of each bin's documents, inputs and labels, for the sample chain."""

    @property
    def counts(self) -> Tensor:
        """(objectives,) int64: number of targets of each objective; on the host."""
        return torch.tensor([targets.slots.numel() for targets in self.targets])

    def share(self, rank: int, size: int) -> "Batch":
        """The batch for one of `size` ranks that share it: it keeps everything except targets outside the rank's slots.

        The batch must be on the host. `Targets.slots` keep their numbers in the whole batch.

        Raises:
            ValueError: the slots cannot be shared evenly.
        """
        if size == 1:
            return self
        span = span_of_rank(self.tokens.numel(), rank, size)
        return replace(self, targets=tuple(targets.between(*span) for targets in self.targets))

    def idle(self) -> "Batch":
        """A batch of the same shapes with pad tokens only: no document, no target, no digest."""
        return replace(
            PackedSequences.idle(self),
            targets=tuple(targets.between(0, 0) for targets in self.targets),
            digests=torch.zeros_like(self.digests),
        )

    def to(self, device: torch.device | str) -> "Batch":
        """The batch on `device`, except `digests`, which the step reads on the host."""
        return replace(PackedSequences.to(self, device), targets=tuple(each.to(device) for each in self.targets))


def span_of_rank(slots: int, rank: int, size: int) -> tuple[int, int]:
    """First and end slot of the part of a shared batch that one of `size` ranks computes.

    Raises:
        ValueError: `slots` cannot be shared evenly.
    """
    if slots % size:
        raise ValueError(
            f"a batch of {slots} slots cannot be shared by {size} ranks evenly: data.bin_tokens must be a multiple of "
            f"parallel.context, {size}; change one of them"
        )
    return rank * slots // size, (rank + 1) * slots // size
