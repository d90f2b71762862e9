"""Attention on a CPU: torch's flash kernel, called once for each document, so that nothing is spent on padding.

In: queries and keys as projected, values, angles, where documents are. Out: what each slot gathered. Kept for the
backward pass: the inputs, the output and one number for each slot and head; the rotation is computed again there.

All these calls are one operator with its gradient, so that autograd keeps one node for a layer instead of one for each
document, and so that `torch.compile` sees no loop over lengths that change with every batch. Keys and values of other
ranks are gathered inside it, and again in its backward pass, so that they are not kept. The kernel is called in float32
under autocast too: in bfloat16 it is up to 4 times slower on CPUs, those with bfloat16 instructions among them.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from pretrain.model.attention.exchange import gather, scatter_sum
from pretrain.model.attention.layout import Layout
from pretrain.model.context import group_of

_FORWARD = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
_BACKWARD = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward


def flash_cpu(
    query: Tensor, key: Tensor, value: Tensor, cos: Tensor, sin: Tensor, layout: Layout, slots: Tensor | None = None
) -> Tensor:
    """The same as `attend`; pads get zeros. With `slots`, and so without an exchange, `query` is ``(n, H, K)``."""
    group = layout.group if layout.exchange == "all_gather" else ""
    gathered: Tensor = _forward(query, key, value, cos, sin, layout.spans, group, slots)[0]
    return gathered


@torch.library.custom_op("zymogen::flash_cpu", mutates_args=())
def _forward(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    cos: Tensor,
    sin: Tensor,
    spans: Tensor,
    group: str = "",
    slots: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """What each query gathered, ``(n, H, K)`` in the dtype of `value`, and log-sum-exp of its scores, ``(1, H, n)``.

    Queries are those of all S slots, or of `slots` ``(n,)`` in any order. With the name of a `group`, all but `cos`,
    `sin` and `spans` is of this rank's slots.
    """
    q, k, v, own = _rotated(query, key, value, cos, sin, group, slots)
    gathered = torch.zeros_like(q)
    log_sums = gathered.new_zeros(gathered.shape[:3])
    for keys, queries in _documents(spans, own):
        of_document = _FORWARD(q[:, :, queries], k[:, :, keys], v[:, :, keys])
        gathered[:, :, queries], log_sums[:, :, queries] = of_document
    return _slots_first(gathered).to(value.dtype), log_sums


@torch.library.custom_op("zymogen::flash_cpu_backward", mutates_args=())
def _backward(
    gradient: Tensor, saved: Sequence[Tensor], group: str, slots: Tensor | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of queries, keys and values, in their dtypes; `saved` is what `_forward` took and gave."""
    query, key, value, cos, sin, spans, gathered, log_sums = saved
    q, k, v, own = _rotated(query, key, value, cos, sin, group, slots)
    gradient, gathered = (_heads_first(x.to(v.dtype)) for x in (gradient, gathered))
    of_q, of_k, of_v = map(torch.zeros_like, (q, k, v))
    for keys, queries in _documents(spans, own):
        asked = (x[:, :, queries] for x in (gradient, q))
        given = (x[:, :, keys] for x in (k, v))
        found = (x[:, :, queries] for x in (gathered, log_sums))
        of_q[:, :, queries], of_k[:, :, keys], of_v[:, :, keys] = _BACKWARD(*asked, *given, *found, 0.0, False)
    of_q = _turned(_slots_first(of_q), cos[own], -sin[own])
    of_k, of_v = _turned(_slots_first(of_k), cos, -sin), _slots_first(of_v)
    if group:
        of_k, of_v = scatter_sum(torch.stack((of_k, of_v), 1), group).unbind(1)
    # Parts of one tensor are copied, because what an operator returns may not share memory.
    return of_q.to(query.dtype), of_k.to(key.dtype).contiguous(), of_v.to(value.dtype).contiguous()


def _rotated(
    query: Tensor, key: Tensor, value: Tensor, cos: Tensor, sin: Tensor, group: str, slots: Tensor | None
) -> tuple[Tensor, Tensor, Tensor, slice | Tensor]:
    """Queries, and keys and values of all slots, as the kernel takes them, and the slots of the queries."""
    first = 0
    if group:
        first = group_of(group).rank() * len(query)
        key, value = gather(key, value, group).unbind(1)
    own = slice(first, first + len(query)) if slots is None else slots
    query, key, value = (x.to(torch.promote_types(x.dtype, torch.float32)) for x in (query, key, value))
    q, k, v = map(_heads_first, (_turned(query, cos[own], sin[own]), _turned(key, cos, sin), value))
    return q, k, v, own


def _turned(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """What `layout.rotate` computes, written where it stays, in half the time; autograd could not follow."""
    turned = torch.empty_like(x, memory_format=torch.contiguous_format)
    first, second = x.chunk(2, dim=-1)
    to_first, to_second = turned.chunk(2, dim=-1)
    torch.mul(first, cos, out=to_first).addcmul_(second, sin, value=-1)
    torch.mul(second, cos, out=to_second).addcmul_(first, sin)
    return turned


def _documents(spans: Tensor, own: slice | Tensor) -> Iterator[tuple[slice, slice | Tensor]]:
    """Slots of each document that has queries in `own`, and where in `own` these are."""
    if isinstance(own, slice):
        for start, end in spans.tolist():
            first, last = max(start, own.start), min(end, own.stop)
            if first < last:
                yield slice(start, end), slice(first - own.start, last - own.start)
        return
    ascending, order = own.sort(stable=True)
    for (start, end), (first, last) in zip(spans.tolist(), torch.searchsorted(ascending, spans).tolist(), strict=True):
        if first < last:
            yield slice(start, end), order[first:last]


def _heads_first(x: Tensor) -> Tensor:
    """A view of ``(S, H, K)`` as ``(1, H, S, K)``, which is the kernel's form."""
    return x.transpose(0, 1)[None]


def _slots_first(x: Tensor) -> Tensor:
    return x[0].transpose(0, 1)


@_forward.register_fake
def _(query: Tensor, key: Tensor, value: Tensor, *_: Any) -> tuple[Tensor, Tensor]:
    dtype = torch.promote_types(value.dtype, torch.float32)
    return value.new_empty(query.shape), value.new_empty((1, *query.shape[1::-1]), dtype=dtype)


@_backward.register_fake
def _(
    gradient: Tensor, saved: Sequence[Tensor], group: str, slots: Tensor | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    query, key, value = (x.new_empty(x.shape) for x in saved[:3])
    return query, key, value


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    *tensors, ctx.group, slots = inputs
    ctx.save_for_backward(slots, *tensors, *output)


def _gradients(ctx: Any, gradient: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
    slots, *saved = ctx.saved_tensors
    return *_backward(gradient, saved, ctx.group, slots), None, None, None, None, None


_forward.register_autograd(_gradients, setup_context=_save)
