"""Which attention backend a machine takes, and what each can take.

In: device, compute dtype, channels of a head, and what the user asked for. Out: a backend and, where it is not the
first choice, why. Nothing is kept.
"""

import inspect
from collections.abc import Callable
from functools import lru_cache
from typing import Any, Literal, get_args

import torch

from zymogen.unsupported import UnsupportedFeature

Backend = Literal["varlen", "flash_cpu", "per_document", "dense"]
"""`varlen`: torch's FlashAttention over packed documents, one kernel a layer. `flash_cpu`: torch's flash kernel for
the CPU, a call for each document, in float32. `per_document`: `scaled_dot_product_attention`, a call for each document.
`dense`: one masked call over whole bins, quadratic in their size; the reference."""

Request = Literal["auto", "varlen", "flash_cpu", "per_document", "dense"]
"""What a user may ask for."""

VARLEN: Callable[..., Any] | None = None
"""`torch.nn.attention.varlen.varlen_attn`, once it was looked for: its module takes two seconds to import. Kept, as a
compiler would look into a function that looks for it."""
_NEEDED_BY_VARLEN = {"query", "key", "value", "cu_seq_q", "cu_seq_k", "max_q", "max_k", "scale"}


@lru_cache(maxsize=256)
def choose(request: Request, device_type: str, dtype: torch.dtype, head_dim: int) -> tuple[Backend, tuple[str, ...]]:
    """The backend to take, and a line for each better one that was passed over.

    Args:
        request: `auto`, or the one that must be taken.
        device_type: 'cpu', 'cuda', ...
        dtype: that of queries, keys and values: autocast's where it is on.
        head_dim: channels of a head.

    Raises:
        ValueError: the one that was asked for cannot take this.
    """
    if request != "auto":
        obstacle = _obstacle(request, device_type, dtype, head_dim)
        if obstacle:
            usable = [b for b in get_args(Backend) if not _obstacle(b, device_type, dtype, head_dim)]
            raise ValueError(
                f"compute.attention is {request!r}, but {obstacle}, or take 'auto' or one of {', '.join(usable)}"
            )
        return request, ()
    passed_over: list[str] = []
    for backend in _PREFERRED.get(device_type, ()):
        obstacle = _obstacle(backend, device_type, dtype, head_dim)
        if not obstacle:
            return backend, tuple(passed_over)
        passed_over.append(f"attention: not {backend}, because {obstacle}")
    return "per_document", tuple(passed_over)


_PREFERRED: dict[str, tuple[Backend, ...]] = {"cuda": ("varlen",), "cpu": ("flash_cpu",)}


def _obstacle(backend: Backend, device_type: str, dtype: torch.dtype, head_dim: int) -> UnsupportedFeature | None:
    """What keeps `backend` from taking this; None if nothing does."""
    if backend == "varlen":
        return _obstacle_of_varlen(device_type, dtype, head_dim)
    if backend == "flash_cpu" and device_type != "cpu":
        return UnsupportedFeature(
            f"flash_cpu needs the CPU and this is {device_type}", "launch it where no GPU is seen"
        )
    return None


def _obstacle_of_varlen(device_type: str, dtype: torch.dtype, head_dim: int) -> UnsupportedFeature | None:
    if device_type != "cuda":
        return UnsupportedFeature(
            f"varlen needs a CUDA device and this is {device_type}", "launch it on a machine with a GPU"
        )
    if torch.cuda.is_available() and torch.cuda.get_device_capability() < (8, 0):
        return UnsupportedFeature(
            f"varlen needs a GPU from Ampere on and this is {torch.cuda.get_device_name()}",
            "compute.attention=dense may be faster than a call for each document where data.bin_tokens is some "
            "thousands, and can be compiled",
        )
    if dtype not in (torch.bfloat16, torch.float16):
        return UnsupportedFeature(
            f"varlen takes bfloat16 and float16 and this is {str(dtype)[6:]}", "launch with --mixed_precision bf16"
        )
    if head_dim % 8 or head_dim > 256:
        return UnsupportedFeature(
            f"varlen takes heads of a multiple of 8 channels up to 256 and these have {head_dim}",
            "every preset but esm2_60k has such heads: model.preset=esm2_8m, say",
        )
    if find_varlen() is None:
        return UnsupportedFeature(
            f"torch {torch.__version__} has no torch.nn.attention.varlen with a scale",
            "2.11 has: pip install 'torch>=2.11', or make setup",
        )
    return None


def find_varlen() -> Callable[..., Any] | None:
    """Set and return `VARLEN`, if this torch has it with the arguments that are used here.

    Its signature moved: 2.10 takes `is_causal` and no scale, 2.11 `scale` and `window_size`, 2.12 adds grouped queries.
    """
    global VARLEN
    try:
        from torch.nn.attention.varlen import varlen_attn
    except ImportError:
        return None
    has_all = inspect.signature(varlen_attn).parameters.keys() >= _NEEDED_BY_VARLEN
    VARLEN = varlen_attn if has_all else None
    return VARLEN
