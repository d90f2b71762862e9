"""The model that is pretrained: the encoder, and a head that reads its vectors at the targets alone.

In: a `Batch` with the targets of one objective. Out: the *sum* of their losses, which the step divides once, by the
count over all processes; the head's logits are float32. Kept: the parameters.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from data.batches.batch import Batch, PackedSequences
from pretrain.model.attention.choice import Request
from pretrain.model.encoder import Encoder
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


class MaskedLanguageModel(nn.Module):
    """An encoder and its head, for masked language modelling."""

    def __init__(self, shape: EsmShape, attention: Request = "auto") -> None:
        """Weights are torch's defaults until `initialization.initialise` or `weights.io.published` gives them."""
        super().__init__()
        self.encoder = Encoder(shape, attention)
        self.head = MaskedLanguageHead(shape)

    @property
    def shape(self) -> EsmShape:
        """The shape that the encoder was built with."""
        return self.encoder.shape

    def forward(self, batch: Batch, each: bool = False) -> Tensor:
        """Cross-entropy summed over the targets, ``(1,)`` float32 in nats: one entry per objective.

        Without a target it is 0, and every parameter still gets a gradient of 0, because DDP waits for all of them.

        Args:
            batch: the input.
            each: return the loss of each target instead, as `target_losses` does. Engines that gather parameters do so
                when the model itself is called, not when one of its methods is.
        """
        losses = self.target_losses(batch)
        return losses if each else losses.sum(0, keepdim=True)

    def target_losses(self, batch: Batch) -> Tensor:
        """Negative log-likelihood of each target, ``(targets,)`` float32 in nats, in the order of `Targets.slots`."""
        (targets,) = batch.targets
        return F.cross_entropy(self.logits(batch, targets.slots), targets.labels, reduction="none")

    def logits(self, batch: PackedSequences, slots: Tensor | None = None) -> Tensor:
        """Logits of `slots` ``(n,)`` int64, or of every slot where None: ``(n, V)`` float32.

        Where ranks share a batch, `slots` must lie in this rank's share, and None means every slot of that share.
        """
        vectors: Tensor = self.encoder(batch, slots)
        logits: Tensor = self.head(vectors, self.encoder.embedding.weight)
        return logits
