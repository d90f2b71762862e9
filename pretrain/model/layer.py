"""One layer of the encoder, in both architectures.

In: the residual stream of all slots. Out: the residual stream after one layer. Kept: the parameters.

Shapes: S slots of the batch, D width of the residual stream, H heads, K channels of a head, W feed-forward width.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from pretrain.model.attention import Layout, attend, own_slots
from pretrain.model.dropout import KeyedDropout, Site
from pretrain.model.linear import FusedLinear, Linear
from pretrain.model.presets import EsmShape


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


class Layer(nn.Module):
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
