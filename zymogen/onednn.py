"""Products of matrices on a CPU: by oneDNN where that is faster, and whether the CPU multiplies bfloat16 itself.

In: matrices. Out: their product, or which library computes it. Kept: nothing.

Torch multiplies float32 by MKL, which gives a CPU of another maker than its own the code of older ones: on an AMD CPU
with AVX-512, oneDNN, which torch brings along, is more than twice as fast. Torch has no setting that chooses it, so the
operator of its compiler is called here.
"""

import torch
from torch import Tensor


def _emulates_bfloat16() -> bool:
    capabilities: dict[str, bool] = getattr(torch.cpu, "get_capabilities", dict)()
    instructions = ("avx512_bf16", "amx_bf16", "bf16", "sve_bf16")
    return bool(capabilities) and not any(map(capabilities.get, instructions))


EMULATES_BFLOAT16 = _emulates_bfloat16()
"""Whether this CPU is known to have no instructions that multiply bfloat16. A constant, which a compiler can read."""
ROWS = 128
"""oneDNN takes inputs whose rows are a multiple of this. It keeps half a megabyte for each number of rows that it has
met, and only a bin's slots are the same number again and again."""
PRODUCTS = 4_000_000
"""Fewest multiplications for which oneDNN is called: at a quarter of it, it is as fast as MKL, and slower below."""
HAS_ONEDNN: bool = torch.backends.mkl.is_available() and torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
"""Whether torch has both libraries. Without MKL it has another way for its own products, which was not measured."""


def is_by_onednn(x: Tensor, weight: Tensor) -> bool:
    """Whether oneDNN multiplies ``(..., in)`` by ``(out, in)``: it follows from types and shapes alone.

    ``torch.backends.mkldnn.flags(enabled=False)`` leaves all products to MKL.
    """
    if torch.compiler.is_compiling():  # a compiler chooses by itself
        return False
    rows = x.numel() // x.shape[-1]
    return (
        onednn_multiplies(x)
        and weight.dtype == torch.float32
        and rows % ROWS == 0
        and rows * weight.numel() >= PRODUCTS
        and x.is_contiguous()
        and not torch.is_autocast_enabled("cpu")
    )


def onednn_multiplies(x: Tensor) -> bool:
    """Whether oneDNN is there for products of `x`, and not turned off."""
    return HAS_ONEDNN and x.device.type == "cpu" and x.dtype == torch.float32 and torch._C._get_mkldnn_enabled()


def by_onednn(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """``x @ weight.T + bias`` of float32 matrices ``(n, in)``, ``(out, in)``, in any layout, and of ``(out,)``."""
    product: Tensor = torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")
    return product
