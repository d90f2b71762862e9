"""Residual dropout with keyed masks: what falls is a function of (bin, layer, site), not of a generator's past.

In: what a sublayer adds to the residual stream. Out: the same, dropped. Nothing is kept: no generator's state is saved,
and a layer that is recomputed in the backward pass draws the same mask again without help.

Each bin draws its own ``(T, dim)`` mask, so masks depend neither on how many bins share a forward nor on which rank
holds them. They are drawn on the device of the activations; a GPU and a CPU draw different masks from one key.
"""

from enum import IntEnum

import torch
from torch import Tensor

from data import draw
from data.batches.batch import PackedSequences


class Site(IntEnum):
    """Where in a layer a sum is made; part of the key."""

    ATTENTION = 0
    FEED_FORWARD = 1


class KeyedDropout:
    """Dropout for one forward pass of one batch."""

    def __init__(self, probability: float, batch: PackedSequences, share: slice = slice(None)) -> None:
        """Take the keys of `batch`, and the slots of it that are computed: all, or those of one rank."""
        self.probability = probability
        self.bin_slots = batch.tokens.numel() // batch.num_bins
        first, end, _ = share.indices(batch.tokens.numel())
        starts = range(0, batch.tokens.numel(), self.bin_slots)
        self.bins = [
            (key, slice(max(first - start, 0), min(end - start, self.bin_slots)))
            for key, start in zip(batch.draw_keys, starts, strict=True)
            if start < end and first < start + self.bin_slots
        ]
        """Key of each bin that has such slots, and where they are in it."""

    def __call__(self, update: Tensor, layer: int, site: Site, slots: Tensor | None = None) -> Tensor:
        """`update` with channels dropped and the rest scaled by ``1 / (1 - probability)``.

        Args:
            update: ``(S, dim)``, or ``(n, dim)`` where it was computed for some slots alone.
            layer: index of the layer.
            site: where in the layer.
            slots: ``(n,)`` int64, those slots, counted from the first that is computed; None for all.
        """
        size = torch.Size((self.bin_slots, update.shape[1]))
        kept = torch.cat([self._kept(draw.key(key, layer, site), size, update.device)[own] for key, own in self.bins])
        if slots is not None:
            kept = kept.index_select(0, slots)
        return update * kept / (1 - self.probability)

    def _kept(self, key: int, size: torch.Size, device: torch.device) -> Tensor:
        generator = torch.Generator(device).manual_seed(key)
        return torch.rand(size, generator=generator, device=device) >= self.probability
