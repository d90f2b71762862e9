"""The most matrix-product FLOPs per second that devices reach: what a model's speed is a share of.

In: a device, a type, a width. Out: FLOPs per second. Kept: nothing; each start measures again, which takes 0.4 s.

For a GPU of the table its datasheet's figure is taken, without sparsity; any other device is measured when it is asked
for. A measured peak depends on the shape and on who else uses the machine, a known one on neither: do not compare them.
"""

import re
import time
from collections.abc import Callable

import torch

from zymogen.onednn import EMULATES_BFLOAT16, ROWS, by_onednn, is_by_onednn

KNOWN: tuple[tuple[str, float], ...] = (
    (r"B200$", 2250e12),  # Blackwell datasheet, by torchtitan (torchtitan/tools/utils.py)
    (r"GH200\b", 990e12),  # an H100's chip; the text of its datasheet was not available
    (r"H200 NVL\b", 835e12),  # as the H100 NVL's; the text of its datasheet was not available
    (r"H200\b", 989e12),  # H200 datasheet: 1,979 with sparsity
    (r"H100 PCIe\b", 756e12),  # H100 datasheet: 1,513 with sparsity
    (r"H100 NVL\b", 835e12),  # H100 datasheet, by torchtitan
    (r"H100\b", 989e12),  # H100 datasheet, SXM: 1,979 with sparsity
    (r"A100\b", 312e12),  # A100 datasheet: 312 | 624
    (r"A40\b", 149.7e12),  # A40 datasheet: 149.7 | 299.4
    (r"A30\b", 165e12),  # A30 datasheet, as others quote it: 165 | 330
    (r"A10\b", 125e12),  # A10 datasheet: 125 | 250
    (r"RTX A6000\b", 154.8e12),  # GA102 whitepaper, table 3, sums in float32: 154.8 | 309.6
    (r"L40S\b", 362.05e12),  # L40S datasheet: 362.05 | 733
    (r"L40\b", 181.05e12),  # L40 datasheet: 181.05 | 362.1
    (r"L4\b", 121e12),  # L4 datasheet: 242 with sparsity
    (r"RTX 4090$", 165.2e12),  # Ada whitepaper, appendix A, sums in float32: 165.2 | 330.4
    (r"MI300X\b", 1307.4e12),  # MI300X datasheet: 1,307.4
)
"""Pattern of the device's name, and its dense FLOP/s in bfloat16 and float16 with sums in float32; the first pattern
that matches counts. Each comment names the maker's text that the figure was compared with in November 2026, as others
quote it, and the figure there (NVIDIA prints dense | with sparsity, or only the latter, which is twice as much)."""
PARTIAL = r"\bMIG\b|Laptop|Max-Q"
"""Names of devices that share a name with a larger one."""

CPU_FLOPS = 4e9
"""FLOPs of one product where a CPU is measured: some 40 ms on one core."""
SECONDS = 0.4
"""Time that measuring takes."""


def peak(device: torch.device, dtype: torch.dtype, dim: int, clock: Callable[[], float] = time.perf_counter) -> float:
    """The peak of `device` for products of `dtype`, FLOPs per second: known where the table holds it, else measured.

    Args:
        device: CPU or CUDA.
        dtype: type of the factors.
        dim: width of the model; used only where the peak is measured.
        clock: gives seconds; used only where the peak is measured.
    """
    known = known_peak(torch.cuda.get_device_name(device), dtype) if device.type == "cuda" else None
    return measured_peak(device, dtype, dim, clock) if known is None else known


def known_peak(name: str, dtype: torch.dtype) -> float | None:
    """FLOP/s of the GPU that `torch.cuda.get_device_name` calls `name`; None where the table does not have it."""
    if dtype not in (torch.bfloat16, torch.float16) or re.search(PARTIAL, name):
        return None
    return next((flops for pattern, flops in KNOWN if re.search(rf"\b{pattern}", name)), None)


def measured_peak(
    device: torch.device, dtype: torch.dtype, dim: int, clock: Callable[[], float] = time.perf_counter
) -> float:
    """FLOP/s of the fastest of several products ``(tokens, dim) @ (dim, 4 dim)``, with torch's present threads.

    Takes some 0.4 s, and at least three products. On a CPU the product has up to 4,096 tokens, on a GPU 16,384. A CPU
    multiplies as `pretrain.model.linear` does: by oneDNN where that is called, and in float32 where it emulates
    bfloat16.

    Args:
        device: CPU or CUDA.
        dtype: type of the factors.
        dim: width of the model; its feed-forward is the product.
        clock: gives seconds; with `time.process_time` the result is FLOPs per CPU second.
    """
    if device.type == "cpu" and dtype == torch.bfloat16 and EMULATES_BFLOAT16:
        dtype = torch.float32
    per_token = 2 * dim * 4 * dim
    on_cuda = device.type == "cuda"
    if on_cuda:
        torch.cuda.synchronize(device)
    # The first guess of a CPU's tokens may be ten times too many, where it has no instructions for the type.
    tokens = 16_384 if on_cuda else max(64, min(4096, int(CPU_FLOPS / per_token)))
    # Random numbers, because a GPU multiplies ones at a higher clock rate than weights.
    x, weight = (torch.randn(n, dim, device=device).to(dtype) for n in (tokens, 4 * dim))
    # Forward and backward passes read weights in either layout, and which is the faster depends on the library.
    layouts = weight.t(), weight.t().contiguous()
    by_library = not on_cuda and is_by_onednn(x, weight)
    # Written to the same place each time: a CPU's fresh pages are no part of the product. oneDNN makes its own place.
    out = torch.empty(0 if by_library else tokens, 4 * dim, device=device, dtype=dtype)
    at_once = 16 if on_cuda else 1  # a GPU's products are too short to be timed alone

    def timed(factor: torch.Tensor, tokens: int) -> float:
        started = clock()
        for _ in range(at_once):
            if by_library:
                by_onednn(x[:tokens], factor.t())
            else:
                torch.mm(x[:tokens], factor, out=out[:tokens])
        if on_cuda:
            torch.cuda.synchronize(device)
        return clock() - started

    with torch.no_grad():
        timed(layouts[0], 64)
        started = time.perf_counter()
        if not on_cuda and (fits := SECONDS / 8 / timed(layouts[0], 64)) < tokens / 64:
            tokens = max(64, int(64 * fits) // ROWS * ROWS)
        seconds = [timed(factor, tokens) for factor in layouts]
        while time.perf_counter() < started + SECONDS:
            seconds += [timed(factor, tokens) for factor in layouts]
    return at_once * tokens * per_token / min(seconds)
