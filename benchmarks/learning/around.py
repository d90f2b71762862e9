"""A trial of the architecture: an embedding that sees what stands around a residue, by a depthwise convolution.

In: how far it sees. Out: a model with one more weight, `NAME`, in its run's checkpoints. No export has it: transformers
has no such model, so this is for reports alone. Kept: nothing.
"""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from data.batches.batch import PackedSequences
from pretrain.model.masked_language_model import MaskedLanguageModel
from zymogen.trainer.checkpoint.load import newest_valid, unreadable
from zymogen.trainer.checkpoint.reader import read_tensors
from zymogen.trainer.run.directory import RunDirectory

NAME = "encoder.embedding.around"


class Around(nn.Embedding):
    """An embedding, plus those of the residues up to some places away, each times a vector of that place.

    Args:
        vocabulary: number of token ids.
        dim: width D.
        farthest: how many places it sees on either side.
    """

    def __init__(self, vocabulary: int, dim: int, farthest: int) -> None:
        super().__init__(vocabulary, dim)
        self.around = nn.Parameter(torch.zeros(2 * farthest, dim))
        """Rows of the places 1, 2, ... after a residue, then of those before it."""
        self.documents: Tensor | None = None
        """(slots,) the document of each slot of the batch that comes next: none sees into another."""

    def forward(self, tokens: Tensor) -> Tensor:
        """Vectors of the tokens of a whole batch, ``(slots, D)``."""
        own = super().forward(tokens)
        found, documents = own.clone(), self.documents
        assert documents is not None
        after, before = self.around.chunk(2)
        for number, (next_one, last_one) in enumerate(zip(after, before, strict=True), 1):
            same = (documents[number:] == documents[:-number])[:, None]
            found[:-number] += own[number:] * same * next_one
            found[number:] += own[:-number] * same * last_one
        return found


def with_around(model: MaskedLanguageModel, farthest: int) -> MaskedLanguageModel:
    """The model with an embedding that sees so far, on the same device; the new weight is 0 there."""
    old, device = model.encoder.embedding, model.encoder.embedding.weight.device
    with device:
        new = Around(old.num_embeddings, old.embedding_dim, farthest)
    new.weight = old.weight
    model.encoder.embedding = new

    def tell(encoder: nn.Module, arguments: tuple[Any, ...]) -> None:
        batch: PackedSequences = arguments[0]
        new.documents = batch.documents

    model.encoder.register_forward_pre_hook(tell)
    return model


@torch.no_grad()
def as_trained(model: MaskedLanguageModel, run: Path) -> MaskedLanguageModel:
    """A run's model, with the embedding that it was trained with if that was another one."""
    is_run = (run / "run.json").is_file()
    checkpoint = newest_valid(RunDirectory(run).checkpoints, writer=False, check=unreadable) if is_run else None
    found = read_tensors(checkpoint, "model", [NAME]) if checkpoint else {}
    if not found:
        return model
    with_around(model, len(found[NAME]) // 2)
    embedding = model.encoder.embedding
    assert isinstance(embedding, Around)
    embedding.around.copy_(found[NAME])
    return model.requires_grad_(False).train(False)
