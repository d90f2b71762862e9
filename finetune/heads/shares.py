"""Documents that lie in the shares of several ranks: what each rank found in its own slots, put together.

In: a tensor for each document of a batch, computed of this rank's slots. Out: the same of all slots. Kept: nothing.

Every rank of a context-parallel group calls these in the same order. A rank's loss is of its own labels, so the
gradient of a sum over ranks is the sum of the ranks' gradients.
"""

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

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
