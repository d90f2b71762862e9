"""Heads: what turns a slot's vector into a prediction.

In: vectors of the slots that are predicted. Out: float32 logits. Kept: the parameters.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pretrain.model.linear import Linear
from pretrain.model.presets import EsmShape


class MaskedLanguageHead(nn.Module):
    """Logits over the vocabulary, V tokens.

    The last map of ESM-2 is the transposed embedding with a separate bias; the modern architecture has a separate map.
    """

    def __init__(self, shape: EsmShape) -> None:
        """A tied embedding is not kept here but given to each call, so every parameter has one name."""
        super().__init__()
        self.dense = Linear(shape.dim, shape.dim)
        self.norm = nn.LayerNorm(shape.dim, eps=shape.layer_norm_eps)
        if shape.is_modern:
            self.decoder = nn.Linear(shape.dim, shape.vocabulary)
        else:
            self.bias = nn.Parameter(torch.zeros(shape.vocabulary))
        self.is_tied = not shape.is_modern

    def forward(self, x: Tensor, embedding: Tensor) -> Tensor:
        """Map vectors ``(n, dim)`` and the embedding ``(V, dim)`` to logits ``(n, V)``, float32 also in autocast."""
        x = self.norm(F.gelu(self.dense(x)))
        weight, bias = (embedding, self.bias) if self.is_tied else (self.decoder.weight, self.decoder.bias)
        with torch.autocast(x.device.type, enabled=False):
            # Not rounded to bfloat16, because the loss is computed from these. A float64 model stays float64.
            dtype = torch.promote_types(x.dtype, torch.float32)
            return F.linear(x.to(dtype), weight.to(dtype), bias.to(dtype))
