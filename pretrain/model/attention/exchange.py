"""What the ranks of a context-parallel group tell one another in attention: heads for slots, or keys and values.

In: queries, keys and values of this rank's slots. Out: those of all slots, for this rank's share of the heads (Ulysses:
Jacobs et al., 2023, arXiv:2309.14509) or, keys and values alone, for all heads. Nothing is kept.

Each exchange is one operator with its gradient, as `flash_cpu` is; operators take no process group, and are given its
name. What one gives is what the next one reads, so all ranks come to them in one order, in the backward pass too.

Shapes: S slots of the batch, c ranks that share them, H heads, K channels of a head, P tensors that travel together.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from pretrain.model.context import group_of
from zymogen.trainer.collectives import ALL_GATHER

# Ulysses ------------------------------------------------------------------------------------------


def to_heads(query: Tensor, key: Tensor, value: Tensor, group: str) -> tuple[Tensor, Tensor, Tensor]:
    """All slots for this rank's heads: ``(S / c, H, K)`` each becomes ``(S, H / c, K)``, in one collective."""
    query, key, value = _to_heads([query, key, value], group).unbind(1)
    return query, key, value


def to_slots(gathered: Tensor, group: str) -> Tensor:
    """All heads for this rank's slots: ``(S, H / c, K)`` becomes ``(S / c, H, K)``."""
    out: Tensor = _to_slots(gathered[:, None], group)[:, 0]
    return out


@torch.library.custom_op("zymogen::to_heads", mutates_args=())
def _to_heads(parts: Sequence[Tensor], group: str) -> Tensor:
    """P of ``(S / c, H, K)`` become ``(S, P, H / c, K)``."""
    ranks = group_of(group).size()
    slots, heads, channels = parts[0].shape
    # Ranks first: what one rank sends to each is a block, and what it receives stands in the order of slots.
    sent = parts[0].new_empty(ranks, slots, len(parts), heads // ranks, channels)
    for index, part in enumerate(parts):
        sent[:, :, index] = part.view(slots, ranks, -1, channels).transpose(0, 1)
    return _exchanged(sent.flatten(0, 1), group)


@torch.library.custom_op("zymogen::to_slots", mutates_args=())
def _to_slots(whole: Tensor, group: str) -> Tensor:
    """``(S, P, H / c, K)`` becomes ``(S / c, P, H, K)``."""
    ranks = group_of(group).size()
    received = _exchanged(whole.contiguous(), group).view(ranks, -1, *whole.shape[1:])
    return received.movedim(0, 2).flatten(2, 3).contiguous()  # of one head a rank, `flatten` would give a view


def _exchanged(sent: Tensor, group: str) -> Tensor:
    received = torch.empty_like(sent)
    dist.all_to_all_single(received, sent, group=group_of(group))
    return received


@_to_heads.register_fake
def _(parts: Sequence[Tensor], group: str) -> Tensor:
    ranks = group_of(group).size()
    slots, heads, channels = parts[0].shape
    return parts[0].new_empty(ranks * slots, len(parts), heads // ranks, channels)


@_to_slots.register_fake
def _(whole: Tensor, group: str) -> Tensor:
    ranks = group_of(group).size()
    slots, parts, heads, channels = whole.shape
    return whole.new_empty(slots // ranks, parts, ranks * heads, channels)


def _keep_group(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.group = inputs[-1]


def _of_heads(ctx: Any, gradient: Tensor) -> tuple[list[Tensor], None]:
    return list(_to_slots(gradient, ctx.group).unbind(1)), None


def _of_slots(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
    return _to_heads(list(gradient.unbind(1)), ctx.group), None


_to_heads.register_autograd(_of_heads, setup_context=_keep_group)
_to_slots.register_autograd(_of_slots, setup_context=_keep_group)


# All-gather ---------------------------------------------------------------------------------------


def of_all_slots(key: Tensor, value: Tensor, group: str) -> tuple[Tensor, Tensor]:
    """Keys and values of all slots: ``(S / c, H, K)`` each becomes ``(S, H, K)``, in one collective."""
    key, value = _of_all_slots(key, value, group).unbind(1)
    return key, value


def gather(key: Tensor, value: Tensor, group: str) -> Tensor:
    """Keys and values of all slots, ``(S, 2, H, K)``, of this rank's ``(S / c, H, K)``; for use inside an operator."""
    sent = torch.stack((key, value), 1)
    received = sent.new_empty(group_of(group).size() * len(sent), *sent.shape[1:])
    ALL_GATHER(received, sent, group=group_of(group))
    return received


def scatter_sum(gradient: Tensor, group: str) -> Tensor:
    """The sum over ranks of ``(S, 2, H, K)``, for this rank's slots: ``(S / c, 2, H, K)``; the gradient of `gather`.

    Summed in float32 at least, and returned in the dtype of `gradient`.
    """
    sent = gradient.to(torch.promote_types(gradient.dtype, torch.float32)).contiguous()
    received = sent.new_empty(len(sent) // group_of(group).size(), *sent.shape[1:])
    _REDUCE_SCATTER(received, sent, group=group_of(group))
    return received.to(gradient.dtype)


# torch 2.13 renames them, and warns at each call by the old name.
_REDUCE_SCATTER: Callable[..., Any] = getattr(dist, "reduce_scatter_single", dist.reduce_scatter_tensor)


@torch.library.custom_op("zymogen::of_all_slots", mutates_args=())
def _of_all_slots(key: Tensor, value: Tensor, group: str) -> Tensor:
    return gather(key, value, group)


@torch.library.custom_op("zymogen::of_all_slots_backward", mutates_args=())
def _of_all_slots_backward(gradient: Tensor, group: str) -> Tensor:
    return scatter_sum(gradient, group)


@_of_all_slots.register_fake
def _(key: Tensor, value: Tensor, group: str) -> Tensor:
    return key.new_empty(group_of(group).size() * len(key), 2, *key.shape[1:])


@_of_all_slots_backward.register_fake
def _(gradient: Tensor, group: str) -> Tensor:
    return gradient.new_empty(len(gradient) // group_of(group).size(), *gradient.shape[1:])


def _of_gathered(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, None]:
    key, value = _of_all_slots_backward(gradient, ctx.group).unbind(1)
    return key, value, None


_of_all_slots.register_autograd(_of_gathered, setup_context=_keep_group)
