"""Attention on a CPU, a document at a time, so that nothing is spent on padding: compiled, or torch's flash kernel.

In: queries and keys as projected, values, angles, where documents are. Out: what each slot gathered. Kept for the
backward pass: the inputs, the output and one number a slot and head; what is turned is turned again there.

Wrapped as one operator, with its gradient, so that autograd keeps a node for a layer and not for each document, and so
that `torch.compile` sees no loop over lengths that change with every batch. Keys and values of other ranks are gathered
inside it, and again in its backward pass, so that they are not kept. The kernel is called in float32 under autocast
too: in bfloat16 it is up to 4 times slower on CPUs, those with bfloat16 instructions among them.
"""

from collections.abc import Iterator
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from data.compiled import available
from pretrain.model.attention.exchange import gather, scatter_sum
from pretrain.model.attention.layout import Layout
from pretrain.model.attention.rotary_kernel import turned
from pretrain.model.context import group_of


def flash_cpu(query: Tensor, key: Tensor, value: Tensor, cos: Tensor, sin: Tensor, layout: Layout) -> Tensor:
    """As `attend`; pads get zeros."""
    group = layout.group if layout.exchange == "all_gather" else ""
    gathered: Tensor = _forward(query, key, value, cos, sin, layout.spans, group)[0]
    return gathered


@torch.library.custom_op("zymogen::flash_cpu", mutates_args=())
def _forward(
    query: Tensor, key: Tensor, value: Tensor, cos: Tensor, sin: Tensor, spans: Tensor, group: str = ""
) -> tuple[Tensor, Tensor]:
    """What each slot gathered, ``(S, H, K)`` in the dtype of `value`, and log-sum-exp of its scores, ``(S, H)``.

    With the name of a `group`, all but `cos`, `sin` and `spans` is of this rank's slots.
    """
    q, k, v, own = _turned(query, key, value, cos, sin, group)
    gathered = torch.empty(query.shape, dtype=value.dtype)
    log_sums = torch.empty(query.shape[:2], dtype=v.dtype)
    documents = list(_documents(spans, own))
    if small_heads := _small_heads(v):
        out = gathered if gathered.dtype == v.dtype else torch.empty_like(q)
        small_heads.forward(q, k, v, _table(documents), out, log_sums)
        if out is not gathered:
            gathered.copy_(out)
    reached = 0
    for (start, end), (first, last) in documents:
        gathered[reached:first] = log_sums[reached:first] = 0
        reached = last
        if small_heads:
            continue
        out, sums = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
            _document(q, first, last), _document(k, start, end), _document(v, start, end)
        )
        gathered[first:last] = out[0].transpose(0, 1)
        log_sums[first:last] = sums[0].transpose(0, 1)
    gathered[reached:] = log_sums[reached:] = 0
    return gathered, log_sums


@torch.library.custom_op("zymogen::flash_cpu_backward", mutates_args=())
def _backward(
    gradient: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    cos: Tensor,
    sin: Tensor,
    spans: Tensor,
    gathered: Tensor,
    log_sums: Tensor,
    group: str,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of queries, keys and values, in their dtypes."""
    q, k, v, own = _turned(query, key, value, cos, sin, group)
    gradient, gathered = gradient.to(v.dtype), gathered.to(v.dtype)
    of_q, of_k, of_v = (torch.empty(x.shape, dtype=v.dtype) for x in (q, k, v))
    documents = list(_documents(spans, own))
    if small_heads := _small_heads(v):
        small_heads.backward(gradient, q, k, v, _table(documents), gathered, log_sums, (of_q, of_k, of_v))
    reached, reached_query = 0, 0
    for (start, end), (first, last) in documents:
        of_q[reached_query:first] = of_k[reached:start] = of_v[reached:start] = 0
        reached, reached_query = end, last
        if small_heads:
            continue
        of_document = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward(
            _document(gradient, first, last),
            _document(q, first, last),
            _document(k, start, end),
            _document(v, start, end),
            _document(gathered, first, last),
            log_sums[first:last].transpose(0, 1)[None],
            0.0,
            False,
        )
        of_q[first:last], of_k[start:end], of_v[start:end] = (part[0].transpose(0, 1) for part in of_document)
    of_q[reached_query:] = of_k[reached:] = of_v[reached:] = 0
    of_q = turned(of_q, cos[own], sin[own], v.dtype, back=True)
    of_k = turned(of_k, cos, sin, v.dtype, back=True)
    if group:
        of_k, of_v = scatter_sum(torch.stack((of_k, of_v), 1), group).unbind(1)
    # Parts of one tensor are copied, because what an operator returns may not share memory.
    return of_q.to(query.dtype), of_k.to(key.dtype).contiguous(), of_v.to(value.dtype).contiguous()


def _turned(
    query: Tensor, key: Tensor, value: Tensor, cos: Tensor, sin: Tensor, group: str
) -> tuple[Tensor, Tensor, Tensor, slice]:
    """Turned queries, turned keys and values of all slots as the kernel takes them, and the slots of the queries."""
    dtype = torch.promote_types(value.dtype, torch.float32)
    first = 0
    if group:
        first = group_of(group).rank() * len(query)
        key, value = gather(key, value, group).unbind(1)
    own = slice(first, first + len(query))
    return turned(query, cos[own], sin[own], dtype), turned(key, cos, sin, dtype), value.to(dtype), own


def _documents(spans: Tensor, own: slice) -> Iterator[tuple[tuple[int, int], tuple[int, int]]]:
    """First and end slot of each document that has queries in `own`, and first and end of those, counted from it."""
    for start, end in spans.tolist():
        first, last = max(start, own.start), min(end, own.stop)
        if first < last:
            yield (start, end), (first - own.start, last - own.start)


def _table(documents: list[tuple[tuple[int, int], tuple[int, int]]]) -> Tensor:
    return torch.tensor(documents, dtype=torch.int64).reshape(-1, 4)


def _small_heads(x: Tensor) -> ModuleType | None:
    """The compiled kernels, where they are faster than torch's and there is numba."""
    if x.dtype != torch.float32 or x.shape[-1] not in _SMALL or not available():
        return None
    from pretrain.model.attention import small_heads  # needs numba

    return small_heads


_SMALL = (16, 24, 32, 64)
"""Numbers of channels of a head that `small_heads` was measured to be faster with, 1.3 to 1.8 times."""


def _document(x: Tensor, start: int, end: int) -> Tensor:
    """Slots of one document as the kernel wants them, ``(1, H, n, K)``; a view."""
    return x[start:end].transpose(0, 1)[None]


@_forward.register_fake
def _(
    query: Tensor, key: Tensor, value: Tensor, cos: Tensor, sin: Tensor, spans: Tensor, group: str = ""
) -> tuple[Tensor, Tensor]:
    dtype = torch.promote_types(value.dtype, torch.float32)
    return value.new_empty(value.shape), value.new_empty(value.shape[:2], dtype=dtype)


@_backward.register_fake
def _(
    gradient: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    cos: Tensor,
    sin: Tensor,
    spans: Tensor,
    gathered: Tensor,
    log_sums: Tensor,
    group: str,
) -> tuple[Tensor, Tensor, Tensor]:
    return query.new_empty(query.shape), key.new_empty(key.shape), value.new_empty(value.shape)


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    *tensors, ctx.group = inputs
    ctx.save_for_backward(*tensors, *output)


def _gradients(ctx, gradient: Tensor, _: Tensor):  # type: ignore[no-untyped-def]
    return *_backward(gradient, *ctx.saved_tensors, ctx.group), None, None, None, None


_forward.register_autograd(_gradients, setup_context=_save)
