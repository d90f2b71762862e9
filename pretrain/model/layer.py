"""One layer of the encoder, in both architectures.

In: the residual stream of all slots. Out: the residual stream after one layer. Kept: the parameters.

What dropout drops of the residual stream is a function of (bin, layer, site): no generator's state is saved, and a
layer that is recomputed in the backward pass draws the same mask again. Each bin draws its own ``(T, dim)`` mask, so
masks depend neither on how many bins share a forward nor on which rank holds them. They are drawn on the device of the
activations; a GPU and a CPU draw different masks from one key.

Shapes: S slots of the batch, D width of the residual stream, H heads, K channels of a head, W feed-forward width.
"""

from collections.abc import Callable
from enum import IntEnum
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from data.batches.batch import PackedSequences
from pretrain.model.attention import Layout, attend, own_slots
from pretrain.model.linear import FusedLinear, Linear
from pretrain.model.presets import EsmShape
from zymogen import keyed_random
from zymogen.trainer.engine.sharding_unit import ShardingUnit


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


class Attention(nn.Module):
    """Multi-head attention inside documents, with rotary positions."""

    def __init__(self, shape: EsmShape) -> None:
        """Projections of one layer."""
        super().__init__()
        self.heads, self.head_dim, self.has_norms = shape.heads, shape.head_dim, shape.is_modern
        self.qkv = FusedLinear(shape.dim, shape.dim, 3, bias=not shape.is_modern)
        if self.has_norms:
            self.query_norm = nn.LayerNorm(shape.dim, eps=shape.layer_norm_eps, bias=False)
            self.key_norm = nn.LayerNorm(shape.dim, eps=shape.layer_norm_eps, bias=False)
        self.out = Linear(shape.dim, shape.dim, bias=not shape.is_modern)

    def project(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values, ``(S, H, K)`` each, of ``(S, D)``."""
        query, key, value = self.qkv(x).unflatten(-1, (3, -1)).unbind(1)
        if self.has_norms:  # over all heads together; under autocast a norm returns float32
            query, key = self.query_norm(query).to(value.dtype), self.key_norm(key).to(value.dtype)
        query, key, value = (part.unflatten(-1, (self.heads, self.head_dim)) for part in (query, key, value))
        return query, key, value


class FeedForward(nn.Module):
    """Two linear maps with the exact GELU between them, as in ESM-2."""

    def __init__(self, shape: EsmShape) -> None:
        """Projections of one layer."""
        super().__init__()
        self.up = Linear(shape.dim, shape.feed_forward_dim)
        self.down = Linear(shape.feed_forward_dim, shape.dim)

    def forward(self, x: Tensor) -> Tensor:
        """Map ``(S, D)`` to ``(S, D)``."""
        out: Tensor = self.down(F.gelu(self.up(x)))
        return out


class GatedFeedForward(nn.Module):
    """SwiGLU (Shazeer 2020, arXiv:2002.05202) without biases, as in the modern architecture."""

    def __init__(self, shape: EsmShape) -> None:
        """Projections of one layer; the rows of the gate come before the rows that it gates."""
        super().__init__()
        self.gate_up = FusedLinear(shape.dim, shape.feed_forward_dim, 2, bias=False)
        self.down = Linear(shape.feed_forward_dim, shape.dim, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Map ``(S, D)`` to ``(S, D)``."""
        gate, up = self.gate_up(x).chunk(2, -1)
        out: Tensor = self.down(F.silu(gate) * up)
        return out


class Layer(ShardingUnit):
    """One pre-norm layer: ``x + a * attention(norm(x))``, then ``x + a * feed_forward(norm(x))``."""

    def __init__(self, shape: EsmShape, index: int) -> None:
        """`index` counts layers from 0; it is part of the key of this layer's dropout."""
        super().__init__()
        self.index, self.update_scale = index, shape.update_scale
        self.attention_norm = nn.LayerNorm(shape.dim, eps=shape.layer_norm_eps)
        self.attention = Attention(shape)
        self.feed_forward_norm = nn.LayerNorm(shape.dim, eps=shape.layer_norm_eps)
        self.feed_forward = GatedFeedForward(shape) if shape.is_modern else FeedForward(shape)
        self.recomputes = False
        """Selective checkpointing: whether only the residual stream, queries, keys, values and the output of attention
        are kept, and norms and the feed-forward's inside are computed again in the backward pass."""

    def forward(
        self,
        x: Tensor,
        cos: Tensor,
        sin: Tensor,
        layout: Layout,
        dropout: KeyedDropout | None = None,
        slots: Tensor | None = None,
    ) -> Tensor:
        """Map ``(S, D)`` to ``(S, D)``, or to ``(n, D)`` where only `slots` ``(n,)`` are read after this layer.

        All slots are attended to in both cases. What follows attention works on one slot at a time, and is computed
        only for the slots that are read. So is attention itself, where the backend can do that.
        """
        run = recomputed if self.recomputes else _called
        query, key, value = run(self._project, x)
        gathered = attend(query, key, value, cos, sin, layout, slots)
        # With Ulysses, attention keeps its output as it was before the exchange, so it is not kept a second time here.
        update = (run if layout.exchange == "ulysses" else _called)(self._gather, gathered, layout, slots)
        if slots is not None:
            x = x.index_select(0, slots)
        x = self._sum(x, update, Site.ATTENTION, dropout, slots)
        return self._sum(x, run(self._feed_forward, x), Site.FEED_FORWARD, dropout, slots)

    def autocast_weights(self) -> list[Tensor]:
        """Return the weights of the layer's own maps; an adapter's maps are not among them."""
        return [module.weight for module in self.modules() if isinstance(module, Linear)]

    def _project(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return self.attention.project(self.attention_norm(x))

    def _gather(self, gathered: Tensor, layout: Layout, slots: Tensor | None) -> Tensor:
        out: Tensor = self.attention.out(own_slots(gathered, layout, slots).flatten(1))
        return out

    def _feed_forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.feed_forward(self.feed_forward_norm(x))
        return out

    def _sum(
        self, stream: Tensor, update: Tensor, site: Site, dropout: KeyedDropout | None, slots: Tensor | None
    ) -> Tensor:
        if dropout is not None:
            update = dropout(update, self.index, site, slots)
        return torch.add(stream, update, alpha=self.update_scale)


recomputed: Callable[..., Any] = partial(checkpoint, use_reentrant=False, preserve_rng_state=False)
"""Call a function and keep only its inputs; the backward pass computes again what it needs. Nothing here draws from a
generator's state, so no state is kept."""


def _called(function: Callable[..., Any], *arguments: Any) -> Any:
    return function(*arguments)
