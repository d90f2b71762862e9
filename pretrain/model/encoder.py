"""The ESM-2 encoder (Lin et al., 2023, doi:10.1126/science.ade2574) on a flat batch.

In: a `Batch`. Out: one vector per slot. Kept: the parameters.

Where transformers computes token dropout over a row of a padded batch, this computes it over a *document*, so that a
sequence gets the same output whatever is packed beside it.

Shapes: S slots of the batch, D width of the residual stream, H heads, K channels of a head.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from data.alphabet import MASK
from data.batch import Batch
from pretrain.model.attention import Backend, attend
from pretrain.model.dropout import DroppedAdd, Residual, Site, add
from pretrain.model.presets import VOCABULARY, EsmShape
from pretrain.model.rotary import rotate, rotation

EXPECTED_MASK_RATIO = 0.15 * 0.8
"""Share of <mask> among the tokens that ESM-2 was trained on; fixed, whatever the recipe masks, as in transformers."""


class Attention(nn.Module):
    """Multi-head attention inside documents, with rotary positions."""

    def __init__(self, shape: EsmShape, backend: Backend) -> None:
        """Projections of one layer."""
        super().__init__()
        self.heads, self.head_dim, self.backend = shape.heads, shape.head_dim, backend
        self.qkv = nn.Linear(shape.dim, 3 * shape.dim)
        self.out = nn.Linear(shape.dim, shape.dim)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, batch: Batch) -> Tensor:
        """Map ``(S, D)`` to ``(S, D)``; `cos` and `sin` are those of `rotation`."""
        query, key, value = self.qkv(x).unflatten(-1, (3, self.heads, self.head_dim)).unbind(1)
        query = rotate(query * self.head_dim**-0.5, cos, sin)
        gathered = attend(query, rotate(key, cos, sin), value, batch, self.backend)
        out: Tensor = self.out(gathered.flatten(1))
        return out


class FeedForward(nn.Module):
    """Two linear maps with the exact GELU between them."""

    def __init__(self, shape: EsmShape) -> None:
        """Projections of one layer."""
        super().__init__()
        self.up = nn.Linear(shape.dim, shape.feed_forward_dim)
        self.down = nn.Linear(shape.feed_forward_dim, shape.dim)

    def forward(self, x: Tensor) -> Tensor:
        """Map ``(S, D)`` to ``(S, D)``."""
        out: Tensor = self.down(F.gelu(self.up(x)))
        return out


class Layer(nn.Module):
    """One pre-norm layer: ``x + attention(norm(x))``, then ``x + feed_forward(norm(x))``."""

    def __init__(self, shape: EsmShape, index: int, backend: Backend) -> None:
        """`index` counts layers from 0; it is part of the key of this layer's dropout."""
        super().__init__()
        self.index = index
        self.attention_norm = nn.LayerNorm(shape.dim, eps=shape.layer_norm_eps)
        self.attention = Attention(shape, backend)
        self.feed_forward_norm = nn.LayerNorm(shape.dim, eps=shape.layer_norm_eps)
        self.feed_forward = FeedForward(shape)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, batch: Batch, residual: Residual) -> Tensor:
        """Map ``(S, D)`` to ``(S, D)``."""
        x = residual(x, self.attention(self.attention_norm(x), cos, sin, batch), self.index, Site.ATTENTION)
        return residual(x, self.feed_forward(self.feed_forward_norm(x)), self.index, Site.FEED_FORWARD)


class Encoder(nn.Module):
    """Embedding, layers and a final norm."""

    def __init__(self, shape: EsmShape, backend: Backend = "per_document") -> None:
        """Weights are torch's defaults until `initial.initialise` or `transformers_io.load` sets them."""
        super().__init__()
        self.shape = shape
        self.embedding = nn.Embedding(VOCABULARY, shape.dim)
        self.layers = nn.ModuleList(Layer(shape, index, backend) for index in range(shape.layers))
        self.final_norm = nn.LayerNorm(shape.dim, eps=shape.layer_norm_eps)

    def forward(self, batch: Batch) -> Tensor:
        """One vector per slot, ``(S, D)`` float32 under autocast too; those of pad slots mean nothing."""
        x: Tensor = self.embedding(batch.tokens)
        if self.shape.token_dropout:
            x = x * token_dropout_scale(batch)[:, None]
        cos, sin = rotation(batch.positions, self.shape)
        dropping = self.training and self.shape.dropout > 0
        residual: Residual = DroppedAdd(self.shape.dropout, batch) if dropping else add
        for layer in self.layers:
            x = layer(x, cos, sin, batch, residual)
        out: Tensor = self.final_norm(x)
        return out


def token_dropout_scale(batch: Batch) -> Tensor:
    """Factor on the embedding of each slot, ``(S,)`` float32: 0 at <mask>, else what makes up for the document's masks.

    That is ``(1 - 0.12) / (1 - share of <mask> among the document's tokens)``, <cls> and <eos> counted.
    """
    is_mask = batch.tokens == MASK
    masks_before = F.pad(is_mask.cumsum(0), (1, 0))  # integers: exact, and deterministic on a GPU
    boundaries = batch.cu_seqlens.long()
    lengths = boundaries.diff()
    visible = lengths - masks_before[boundaries].diff()
    # A document of masks alone has no embedding to scale; an empty one has no slot to be read by.
    scale = (1 - EXPECTED_MASK_RATIO) * lengths / visible.clamp(min=1)
    return torch.where(is_mask, 0.0, scale[batch.documents])
