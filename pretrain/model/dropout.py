"""Residual dropout with keyed masks: what is dropped is a function of (bin, layer, site), not of a generator's state.

In: what a sublayer adds to the residual stream. Out: the same with channels dropped. Nothing is kept: no generator's
state is saved, and a layer that is recomputed in the backward pass draws the same mask again.

Each bin draws its own ``(T, dim)`` mask, so masks depend neither on how many bins share a forward nor on which rank
holds them. They are drawn on the device of the activations; a GPU and a CPU draw different masks from one key.
"""

from enum import IntEnum

import torch
from torch import Tensor

from data.batches.batch import PackedSequences
from zymogen import keyed_random


class Site(IntEnum):
    """After which sublayer of a layer; part of the key."""

    ATTENTION = 0
    FEED_FORWARD = 1


class KeyedDropout:
    """Dropout for one forward pass of one batch."""

    def __init__(self, probability: float, batch: PackedSequences, share: slice = slice(None)) -> None:
        """Note the keys of `batch` and which of its slots are computed: all, or one rank's share."""
        self.probability = probability
        self.bin_slots = batch.tokens.numel() // batch.num_bins
        first, end, _ = share.indices(batch.tokens.numel())
        starts = range(0, batch.tokens.numel(), self.bin_slots)
        self.bins = [
            (key, slice(max(first - start, 0), min(end - start, self.bin_slots)))
            for key, start in zip(batch.draw_keys, starts, strict=True)
            if start < end and first < start + self.bin_slots
        ]
        """Key of each bin that has slots to compute, and where in the bin these are."""

    def __call__(self, update: Tensor, layer: int, site: Site, slots: Tensor | None = None) -> Tensor:
        """`update` with channels dropped and the rest scaled by ``1 / (1 - probability)``.

        Args:
            update: ``(S, dim)``, or ``(n, dim)`` where it was computed for some slots alone.
            layer: index of the layer.
            site: where in the layer.
            slots: ``(n,)`` int64, those slots, counted from the first that is computed; None for all.
        """
        size = torch.Size((self.bin_slots, update.shape[1]))
        kept = torch.cat(
            [self._kept(keyed_random.key(key, layer, site), size, update.device)[own] for key, own in self.bins]
        )
        if slots is not None:
            kept = kept.index_select(0, slots)
        return update * kept / (1 - self.probability)

    def _kept(self, key: int, size: torch.Size, device: torch.device) -> Tensor:
        generator = torch.Generator(device).manual_seed(key)
        return torch.rand(size, generator=generator, device=device) >= self.probability
