"""The model that is pretrained: the encoder, and a head that reads its vectors at the targets alone.

In: a `Batch` with the targets of one objective. Out: the *sum* of their losses, which the step divides once, by the
count over all processes. Kept: the parameters.
"""

import torch.nn.functional as F
from torch import Tensor, nn

from data.batches.batch import Batch, PackedSequences
from pretrain.model.attention.choice import Request
from pretrain.model.encoder import Encoder
from pretrain.model.heads import MaskedLanguageHead
from pretrain.model.presets import EsmShape


class MaskedLanguageModel(nn.Module):
    """An encoder and its head, for masked language modelling."""

    def __init__(self, shape: EsmShape, attention: Request = "auto") -> None:
        """Weights are torch's defaults until `initial.initialise` or `weights.io.published` gives them."""
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
