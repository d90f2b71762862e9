"""Linear maps on a CPU at the speed of its instructions: float32 by oneDNN, and bfloat16 where it has none for it.

In: an input, and the parameters. Out: the map's value. Kept for the backward pass: the input as it was multiplied.

This is written by hand for two reasons. Torch has no setting that chooses oneDNN (`zymogen.onednn`). And a CPU without
instructions for bfloat16 multiplies it at a tenth to a thirtieth of its speed in float32, because torch converts the
numbers one by one. Here factors are rounded to bfloat16 as autocast does, then multiplied and summed in float32, which
holds each product of two of them exactly, and the result is rounded. Gradients are rounded like the rest. So the values
are those of the instructions, and only temporary memory is larger.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from zymogen.onednn import EMULATES_BFLOAT16, by_onednn, is_by_onednn


class Linear(nn.Linear):
    """torch's linear map, by oneDNN where that is faster, and in float32 where bfloat16 is emulated."""

    def forward(self, x: Tensor) -> Tensor:
        """Map ``(..., in)`` to ``(..., out)``, in autocast's dtype where that is on."""
        if x.device.type == "cpu":
            if EMULATES_BFLOAT16 and _is_bfloat16(x):
                out: Tensor = _Product.apply(x.to(torch.bfloat16), self.weight, self.bias)  # type: ignore[no-untyped-call]
                return out
            if is_by_onednn(x, self.weight):
                out = _Float32Product.apply(x, self.weight, self.bias)  # type: ignore[no-untyped-call]
                return out
        return F.linear(x, self.weight, self.bias)


class FusedLinear(Linear):
    """Several linear maps of one input, as one matrix with a block of rows for each."""

    def __init__(self, width: int, block_width: int, blocks: int, bias: bool) -> None:
        """`blocks` is for optimizers that treat each map by itself."""
        super().__init__(width, blocks * block_width, bias)
        self.blocks = blocks


def _is_bfloat16(x: Tensor) -> bool:
    if torch.is_autocast_enabled("cpu"):  # which does not change float64
        return torch.get_autocast_dtype("cpu") == torch.bfloat16 and x.dtype != torch.float64
    return x.dtype == torch.bfloat16


class _Float32Product(torch.autograd.Function):
    """``x @ weight.T + bias`` by oneDNN, and its gradients."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(x, weight)
        return by_onednn(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        x, weight = ctx.saved_tensors
        flat = gradient.reshape(-1, weight.shape[0]).contiguous()
        of_x = by_onednn(flat, weight.t()).view_as(x) if ctx.needs_input_grad[0] else None
        of_weight = by_onednn(flat.t(), x.flatten(0, -2).t()) if ctx.needs_input_grad[1] else None
        of_bias = flat.sum(0) if ctx.needs_input_grad[2] else None
        return of_x, of_weight, of_bias


class _Product(torch.autograd.Function):
    """``x @ weight.T + bias`` of bfloat16 `x`, in bfloat16; `weight` and `bias` of any floating dtype are rounded."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.bias_dtype = bias.dtype if bias is not None else None
        with torch.autocast("cpu", enabled=False):
            rounded_bias = _rounded(bias) if bias is not None else None
            return F.linear(x.float(), _rounded(weight), rounded_bias).to(torch.bfloat16)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        x, weight = ctx.saved_tensors
        of_x = of_weight = of_bias = None
        with torch.autocast("cpu", enabled=False):
            flat = gradient.float().flatten(0, -2)
            if ctx.needs_input_grad[0]:
                of_x = (flat @ _rounded(weight)).to(x.dtype).view_as(x)
            if ctx.needs_input_grad[1]:
                of_weight = (flat.t() @ x.float().flatten(0, -2)).to(x.dtype).to(weight.dtype)
            if ctx.needs_input_grad[2]:
                of_bias = flat.sum(0).to(x.dtype).to(ctx.bias_dtype)
        return of_x, of_weight, of_bias


def _rounded(x: Tensor) -> Tensor:
    return x.to(torch.bfloat16).float()
