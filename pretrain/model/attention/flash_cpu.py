"""Attention on a CPU: torch's own flash kernel, a call for each document, so that nothing is spent on padding.

In: queries and keys as projected, values, angles, where documents are. Out: what each slot gathered. Kept for the
backward pass: the inputs, the output and one number a slot and head; what is turned is turned again there.

Wrapped as one operator, with its gradient, so that autograd keeps a node for a layer and not for each document, and so
that `torch.compile` sees no loop over lengths that change with every batch. The kernel is called in float32 under
autocast too: in bfloat16 it is up to 4 times slower on CPUs, those with bfloat16 instructions among them.
"""

import torch
from torch import Tensor

from pretrain.model.attention.layout import Layout
from pretrain.model.rotary_kernel import turned


def flash_cpu(query: Tensor, key: Tensor, value: Tensor, cos: Tensor, sin: Tensor, layout: Layout) -> Tensor:
    """As `attend`; pads get zeros."""
    gathered: Tensor = _forward(query, key, value, cos, sin, layout.spans)[0]
    return gathered


@torch.library.custom_op("zymogen::flash_cpu", mutates_args=())
def _forward(
    query: Tensor, key: Tensor, value: Tensor, cos: Tensor, sin: Tensor, spans: Tensor
) -> tuple[Tensor, Tensor]:
    """What each slot gathered, ``(S, H, K)`` in the dtype of `value`, and log-sum-exp of its scores, ``(S, H)``."""
    dtype = _compute_dtype(value)
    q, k, v = turned(query, cos, sin, dtype), turned(key, cos, sin, dtype), value.to(dtype)
    gathered = torch.empty(value.shape, dtype=value.dtype)
    log_sums = torch.empty(value.shape[:2], dtype=v.dtype)
    reached = 0
    for start, end in spans.tolist():
        gathered[reached:start] = log_sums[reached:start] = 0
        out, sums = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
            *(_document(x, start, end) for x in (q, k, v))
        )
        gathered[start:end] = out[0].transpose(0, 1)
        log_sums[start:end] = sums[0].transpose(0, 1)
        reached = end
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
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of queries, keys and values, in their dtypes."""
    dtype = _compute_dtype(value)
    q, k, v = turned(query, cos, sin, dtype), turned(key, cos, sin, dtype), value.to(dtype)
    gradient, gathered = gradient.to(v.dtype), gathered.to(v.dtype)
    of_q, of_k, of_v = (torch.empty(value.shape, dtype=v.dtype) for _ in range(3))
    reached = 0
    for start, end in spans.tolist():
        of_document = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward(
            *(_document(x, start, end) for x in (gradient, q, k, v, gathered)),
            log_sums[start:end].transpose(0, 1)[None],
            0.0,
            False,
        )
        for whole, part in zip((of_q, of_k, of_v), of_document, strict=True):
            whole[reached:start] = 0
            whole[start:end] = part[0].transpose(0, 1)
        reached = end
    for whole in (of_q, of_k, of_v):
        whole[reached:] = 0
    of_q, of_k = turned(of_q, cos, sin, dtype, back=True), turned(of_k, cos, sin, dtype, back=True)
    return of_q.to(query.dtype), of_k.to(key.dtype), of_v.to(value.dtype)


def _compute_dtype(x: Tensor) -> torch.dtype:
    return torch.promote_types(x.dtype, torch.float32)


def _document(x: Tensor, start: int, end: int) -> Tensor:
    """Slots of one document as the kernel wants them, ``(1, H, n, K)``; a view."""
    return x[start:end].transpose(0, 1)[None]


@_forward.register_fake
def _(query: Tensor, key: Tensor, value: Tensor, cos: Tensor, sin: Tensor, spans: Tensor) -> tuple[Tensor, Tensor]:
    return value.new_empty(value.shape), value.new_empty(value.shape[:2], dtype=_compute_dtype(value))


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
) -> tuple[Tensor, Tensor, Tensor]:
    return query.new_empty(query.shape), key.new_empty(key.shape), value.new_empty(value.shape)


def _save(ctx: torch.autograd.function.FunctionCtx, inputs: tuple[Tensor, ...], output: tuple[Tensor, Tensor]) -> None:
    ctx.save_for_backward(*inputs, *output)


def _gradients(ctx, gradient: Tensor, _: Tensor):  # type: ignore[no-untyped-def]
    return *_backward(gradient, *ctx.saved_tensors), None, None, None


_forward.register_autograd(_gradients, setup_context=_save)
