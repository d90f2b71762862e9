"""The encoder on a flat batch: ESM-2's (Lin et al., 2023, doi:10.1126/science.ade2574) or ESM C's.

In: `PackedSequences`. Out: one vector per slot, or per slot that is read. Kept: the parameters.

Where transformers computes token dropout over a row of a padded batch, this computes it over a *document*, so that a
sequence gets the same output whatever is packed beside it.

Shapes: S slots of the batch, D width of the residual stream. Where ranks share a batch, S counts this rank's share.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from data.alphabet import MASK
from data.batches.batch import PackedSequences
from pretrain.model.attention.choice import Backend, Request, choose
from pretrain.model.attention.layout import layout_of, rotation
from pretrain.model.context import ContextShard
from pretrain.model.layer import KeyedDropout, Layer, recomputed
from pretrain.model.presets import EsmShape
from pretrain.model.settings import Checkpointing

EXPECTED_MASK_RATIO = 0.15 * 0.8
"""Share of <mask> among the tokens that ESM-2 was trained on. As in transformers, it does not follow the recipe."""


class Encoder(nn.Module):
    """Embedding, layers and a final norm."""

    def __init__(self, shape: EsmShape, attention: Request = "auto") -> None:
        """Weights are torch's defaults until `initialization.initialise` or `weights.io.published` gives them."""
        super().__init__()
        self.shape = shape
        self.attention: Request = attention
        self.embedding = nn.Embedding(shape.vocabulary, shape.dim)
        self.layers = nn.ModuleList(Layer(shape, index) for index in range(shape.layers))
        self.final_norm = nn.LayerNorm(shape.dim, eps=shape.layer_norm_eps, bias=not shape.is_modern)
        self.checkpointing = "none"
        self.context: ContextShard | None = None
        """The ranks that share every batch; None where this one computes all slots of its own batches."""

    @property
    def checkpointing(self) -> Checkpointing:
        """What the backward pass computes again instead of keeping it."""
        return self._checkpointing

    @checkpointing.setter
    def checkpointing(self, mode: Checkpointing) -> None:
        self._checkpointing = mode
        for layer in self.layers:
            assert isinstance(layer, Layer)
            layer.recomputes = mode == "selective"

    def forward(self, batch: PackedSequences, slots: Tensor | None = None) -> Tensor:
        """One vector per slot, ``(S, D)`` float32 under autocast too; those of pad slots mean nothing.

        Args:
            batch: the input.
            slots: ``(n,)`` int64, the slots whose vectors are read; the result is ``(n, D)`` then, and the last layer
                computes for them alone what no other slot reads. They are counted in the whole batch, and all of them
                must lie in this rank's share.
        """
        share = slice(None)
        if self.context:
            share = slice(*self.context.span(batch.tokens.numel()))
            slots = slots - share.start if slots is not None else None
        x: Tensor = self.embedding(batch.tokens[share])
        if self.shape.token_dropout:
            x = x * token_dropout_scale(batch)[share, None]
        cos, sin = rotation(batch.positions, self.shape)
        layout = layout_of(batch, self._backend(x), self.context)
        dropout = KeyedDropout(self.shape.dropout, batch, share) if self.training and self.shape.dropout > 0 else None
        last = len(self.layers) - 1
        for index, layer in enumerate(self.layers):
            arguments = (x, cos, sin, layout, dropout, slots if index == last else None)
            x = recomputed(layer, *arguments) if self.checkpointing == "layer" else layer(*arguments)
        out: Tensor = self.final_norm(x)
        return out

    def _backend(self, x: Tensor) -> Backend:
        device = x.device.type
        dtype = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else x.dtype
        return choose(self.attention, device, dtype, self.shape.head_dim)[0]


def token_dropout_scale(batch: PackedSequences) -> Tensor:
    """Factor on the embedding of each slot, ``(S,)`` float32: 0 at <mask>, else one that offsets the document's masks.

    That is ``(1 - 0.12) / (1 - share of <mask> among the document's tokens)``, <cls> and <eos> counted.
    """
    is_mask = batch.tokens == MASK
    masks_before = F.pad(is_mask.cumsum(0), (1, 0))  # integers: exact, and deterministic on a GPU
    boundaries = batch.cu_seqlens.long()
    lengths = boundaries.diff()
    visible = lengths - masks_before[boundaries].diff()
    # Where nothing is visible the scale is not used: a document of masks alone has no embedding to scale, and an empty
    # document has no slot.
    scale = (1 - EXPECTED_MASK_RATIO) * lengths / visible.clamp(min=1)
    return torch.where(is_mask, 0.0, scale[batch.documents])
