"""Residual dropout with keyed masks: what falls is a function of (bin, layer, site), not of a generator's past.

In: what a sublayer adds to the residual stream. Out: the sum. Nothing is kept: no generator's state is saved, and a
layer that is recomputed in the backward pass draws the same mask again without help.

Each bin draws its own ``(T, dim)`` mask, so masks depend neither on how many bins share a forward nor on which rank
holds them. They are drawn on the device of the activations; a GPU and a CPU draw different masks from one key.
"""

from enum import IntEnum
from typing import Protocol

import torch
from torch import Tensor

from data import draw
from data.batch import Batch


class Site(IntEnum):
    """Where in a layer a sum is made; part of the key."""

    ATTENTION = 0
    FEED_FORWARD = 1


class Residual(Protocol):
    """How the output of a sublayer joins the residual stream."""

    def __call__(self, stream: Tensor, update: Tensor, layer: int, site: Site) -> Tensor:
        """The new stream, ``(S, dim)``, from the old one and what `site` of `layer` adds to it."""


def add(stream: Tensor, update: Tensor, layer: int, site: Site) -> Tensor:
    """The plain sum: evaluation, and training without dropout."""
    return stream + update


class DroppedAdd:
    """The sum after dropout of the update, for one forward pass of one batch."""

    def __init__(self, probability: float, batch: Batch) -> None:
        """Take the keys of `batch`; where they lie on a GPU this waits for it, once per forward."""
        self.probability = probability
        self.keys: list[int] = batch.draw_keys.tolist()

    def __call__(self, stream: Tensor, update: Tensor, layer: int, site: Site) -> Tensor:
        """`stream` plus `update` with channels dropped and the rest scaled by ``1 / (1 - probability)``."""
        bin_size = torch.Size((update.shape[0] // len(self.keys), update.shape[1]))
        kept = torch.cat([self._kept(draw.key(key, layer, site), bin_size, update.device) for key in self.keys])
        return stream + update * kept / (1 - self.probability)

    def _kept(self, key: int, size: torch.Size, device: torch.device) -> Tensor:
        generator = torch.Generator(device).manual_seed(key)
        return torch.rand(size, generator=generator, device=device) >= self.probability
