"""Pooling: one vector for each document, of its residues alone.

In: vectors of slots. Out: vectors of documents. Kept: the parameters of attention pooling.

Neither begin, end nor pad tokens are pooled, nor a linker between joined chains. So a sequence's vector is the same
alone, beside others, and padded. Where several ranks hold a document, what each found in its own slots is put together:
every rank of a context-parallel group calls this in the same order. A rank's loss is of its own labels, so the gradient
of a sum over ranks is the sum of the ranks' gradients.

Shapes: S slots of a batch, s of them this rank's, D documents, W width of a vector.
"""

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from data.alphabet import CLS, EOS, PAD
from data.batches.batch import PackedSequences
from finetune.heads.head import OutputMap
from finetune.heads.input_scale import InputScale
from pretrain.model.context import ContextShard


def context_sum(own: Tensor, context: ContextShard | None) -> Tensor:
    """Elementwise sum over the ranks that share a batch; its gradient is summed over them too."""
    if context is None:
        return own
    total: Tensor = _ContextSum.apply(own, context)  # type: ignore[no-untyped-call]
    return total


def context_max(own: Tensor, context: ContextShard | None) -> Tensor:
    """Elementwise maximum over the ranks that share a batch, without a gradient."""
    if context is None:
        return own.detach()
    found = own.detach().clone()
    dist.all_reduce(found, dist.ReduceOp.MAX, group=context.group)
    return found


class _ContextSum(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, own: Tensor, context: ContextShard) -> Tensor:
        ctx.group = context.group
        return _reduced(own, context.group)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return _reduced(gradient, ctx.group), None


def _reduced(own: Tensor, group: dist.ProcessGroup) -> Tensor:
    total = own.clone(memory_format=torch.contiguous_format)
    dist.all_reduce(total, group=group)
    return total


def first_slots(batch: PackedSequences, first: int = 0, end: int | None = None) -> Tensor:
    """(D,) int64 on the batch's device: first slot of each document that begins in ``[first, end)``."""
    end = batch.tokens.numel() if end is None else end
    firsts = torch.tensor([start for start, _ in batch.spans if first <= start < end], dtype=torch.int64)
    if batch.tokens.device.type == "cuda":
        firsts = firsts.pin_memory()
    return firsts.to(batch.tokens.device, non_blocking=True)


def rows_of(slots: Tensor, firsts: Tensor) -> Tensor:
    """Number of each slot's document among those that begin at `firsts`, ascending; 0 for a slot before the first."""
    return (torch.searchsorted(firsts, slots, right=True) - 1).clamp(min=0)


def is_residue(tokens: Tensor) -> Tensor:
    """(S,) bool: whether a slot holds a residue, masked or unknown ones included."""
    return (tokens != CLS) & (tokens != EOS) & (tokens != PAD)


class Pooling(nn.Module):
    """Mean over residues, or a mean weighted by the softmax of a learned score.

    Args:
        width: channels of a vector.
        attention: whether residues are weighted.
    """

    def __init__(self, width: int, attention: bool) -> None:
        super().__init__()
        self.score = OutputMap(width, 1, bias=False) if attention else None

    def forward(
        self,
        vectors: Tensor,
        batch: PackedSequences,
        firsts: Tensor,
        linkers: Tensor,
        context: ContextShard | None = None,
        scale: InputScale | None = None,
    ) -> Tensor:
        """Vectors of this rank's slots ``(s, W)`` to vectors of all documents ``(D, W)``, float32 at least.

        Args:
            vectors: what the encoder gives.
            batch: the whole batch.
            firsts: ``(D,)`` int64 first slot of each document, at least one; a batch of pads may pretend that 0 is one.
            linkers: ``(D, 2)`` int64: slots from a document's first to a linker and to its end; (0, 0) without one.
            context: the ranks that share the batch. All of them get the vectors of all documents.
            scale: its mean is taken from each residue's vector, so from the result; one sum for each document is
                rounded less then than a mean of numbers that are nearly equal.
        """
        share = slice(*context.span(batch.tokens.numel())) if context else slice(None)
        tokens, positions = batch.tokens[share], batch.positions[share]
        slots = torch.arange(batch.tokens.numel(), device=tokens.device)[share]
        rows = rows_of(slots, firsts)
        start, end = linkers[rows].unbind(1)
        pooled = is_residue(tokens) & ~((start <= positions) & (positions < end))
        vectors = vectors.to(torch.promote_types(vectors.dtype, torch.float32))
        weights = self._weights(vectors, pooled, rows, len(firsts), context)[:, None]
        vectors = vectors if scale is None else scale.centred(vectors)
        sums = vectors.new_zeros(len(firsts), vectors.shape[1] + 1)
        sums = context_sum(sums.index_add(0, rows, torch.cat([weights * vectors, weights], 1)), context)
        total = sums[:, -1:]
        return sums[:, :-1] / torch.where(total > 0, total, 1)

    def _weights(
        self, vectors: Tensor, pooled: Tensor, rows: Tensor, documents: int, context: ContextShard | None
    ) -> Tensor:
        """(s,) weight of each slot, not divided by their sum."""
        if self.score is None:
            return pooled.to(vectors.dtype)
        scores = self.score(vectors)[:, 0]
        nothing = scores.new_full((), -torch.inf)
        # The largest score of a document, in whatever share it lies, so that no exponential overflows; what is
        # subtracted from all scores of a softmax needs no gradient.
        top = nothing.repeat(documents).scatter_reduce(0, rows, torch.where(pooled, scores, nothing).detach(), "amax")
        top = context_max(top, context)
        return torch.where(pooled, scores - top[rows], nothing).exp()
