"""Heads: what turns a slot's vector into a prediction.

In: vectors of the slots that are predicted. Out: float32 logits. Kept: the parameters.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pretrain.model.presets import VOCABULARY, EsmShape


class MaskedLanguageHead(nn.Module):
    """Logits over the 33 tokens; the last map is the embedding, transposed, with a bias of its own."""

    def __init__(self, shape: EsmShape) -> None:
        """The embedding is not kept here but given to each call, so every parameter has one name."""
        super().__init__()
        self.dense = nn.Linear(shape.dim, shape.dim)
        self.norm = nn.LayerNorm(shape.dim, eps=shape.layer_norm_eps)
        self.bias = nn.Parameter(torch.zeros(VOCABULARY))

    def forward(self, x: Tensor, embedding: Tensor) -> Tensor:
        """Map vectors ``(n, dim)`` and the embedding ``(33, dim)`` to logits ``(n, 33)``, float32 also in autocast."""
        x = self.norm(F.gelu(self.dense(x)))
        with torch.autocast(x.device.type, enabled=False):
            return F.linear(x.float(), embedding.float(), self.bias.float())
