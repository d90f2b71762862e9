"""Rotary positions (Su et al., 2021, arXiv:2104.09864) in ESM's non-interleaved form: channel i turns with i + K/2.

In: positions inside documents. Out: cosines and sines, once per forward; queries and keys turned by them. Nothing is
kept with the model: the frequencies are a function of the shape, not a buffer, because a buffer that no checkpoint
holds is uninitialised memory after `to_empty`, and one that a checkpoint holds is rounded by `model.to(bfloat16)`.

Shapes: S slots of the batch, H heads, K channels of a head.
"""

from functools import lru_cache

import torch
from torch import Tensor

from pretrain.model.presets import EsmShape, RotaryPrecision

BASE = 10000.0
"""Slowest wavelength over 2 pi, in residues."""


@lru_cache(maxsize=64)
def frequencies(head_dim: int, precision: RotaryPrecision, device: torch.device) -> Tensor:
    """Angle per residue of each pair of channels, ``(K / 2,)`` float32 on `device`.

    Computed on the host, because a power differs in its last bit between devices and is multiplied by the position;
    the copy to the device is made once per process.
    """
    pairs = torch.arange(0, head_dim, 2, dtype=torch.float32, device="cpu")
    exact = 1.0 / (BASE ** (pairs / head_dim))
    rounded: Tensor = exact.to(getattr(torch, precision)).float()
    return rounded.to(device)


def rotation(positions: Tensor, shape: EsmShape) -> tuple[Tensor, Tensor]:
    """Cosines and sines of the angles of every slot.

    Args:
        positions: ``(S,)`` int64, index of each slot inside its document.
        shape: gives the channels per head and the precision of the frequencies.

    Returns:
        cos and sin, each ``(S, 1, K / 2)`` float32.
    """
    step = frequencies(shape.head_dim, shape.rotary_precision, positions.device)
    angles = (positions.float()[:, None] * step)[:, None, :]
    return angles.cos(), angles.sin()


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Turn queries or keys `x` ``(S, H, K)`` by the angles of their slots; same shape and dtype as `x`.

    It is computed in float32, or in float64 if `x` has that.
    """
    first, second = x.to(torch.promote_types(x.dtype, torch.float32)).chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1).to(x.dtype)
