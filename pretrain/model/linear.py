"""Linear maps, also under bfloat16 autocast on a CPU that has no instructions for it.

In: an input, and the parameters. Out: the map's value. Kept for the backward pass: the input as it was multiplied.

This is written by hand because such a CPU multiplies bfloat16 at a tenth to a thirtieth of its speed in float32: torch
converts the numbers one by one. Here factors are rounded to bfloat16 as autocast does, then multiplied and summed in
float32, which holds each product of two of them exactly, and the result is rounded. So the values are those of the
instructions, and only temporary memory is larger. A gradient of float32 weights is not rounded to bfloat16.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn


def _emulates_bfloat16() -> bool:
    capabilities: dict[str, bool] = getattr(torch.cpu, "get_capabilities", dict)()
    instructions = ("avx512_bf16", "amx_bf16", "bf16", "sve_bf16")
    return bool(capabilities) and not any(map(capabilities.get, instructions))


EMULATES_BFLOAT16 = _emulates_bfloat16()
"""Whether this CPU is known to have no instructions that multiply bfloat16. A constant, which a compiler can read."""


class Linear(nn.Linear):
    """torch's linear map, computed in float32 where bfloat16 is emulated."""

    def forward(self, x: Tensor) -> Tensor:
        """Map ``(..., in)`` to ``(..., out)``, in autocast's dtype where that is on."""
        if not (EMULATES_BFLOAT16 and x.device.type == "cpu" and _is_bfloat16(x)):
            return F.linear(x, self.weight, self.bias)
        out: Tensor = _Product.apply(x.to(torch.bfloat16), self.weight, self.bias)  # type: ignore[no-untyped-call]
        return out


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
                of_weight = (flat.t() @ x.float().flatten(0, -2)).to(weight.dtype)
            if ctx.needs_input_grad[2]:
                of_bias = flat.sum(0).to(ctx.bias_dtype)
        return of_x, of_weight, of_bias


def _rounded(x: Tensor) -> Tensor:
    return x.to(torch.bfloat16).float()
