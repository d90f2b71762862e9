"""The head for pairs of residues, a few pairs at a time.

In: vectors of residues, and which two make a pair. Out: numbers of each pair. Kept: the parameters.

A protein of L residues has L (L - 1) / 2 pairs. What is computed of one residue is computed once; what is computed of a
pair is wide, and exists for a chunk of pairs alone: the backward pass computes it again.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from finetune.heads.output import OutputMap
from pretrain.model.layer import recomputed
from pretrain.model.linear import Linear
from pretrain.model.presets import EsmShape

CHUNK_BYTES = 1 << 24
"""Bytes of one float32 tensor of a chunk's hidden channels."""


class PairHead(nn.Module):
    """LayerNorm, then the two maps of an MLP on the two residues' vectors, concatenated.

    The first map of two concatenated vectors is the sum of a map of each.
    """

    def __init__(self, shape: EsmShape, hidden: int, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(shape.dim, eps=shape.layer_norm_eps)
        self.first, self.second = Linear(shape.dim, hidden), Linear(shape.dim, hidden, bias=False)
        self.out = ChunkedOutput(hidden, width)

    def forward(self, vectors: Tensor, first: Tensor, second: Tensor) -> Tensor:
        """Vectors ``(s, W)`` and the rows ``(n,)`` of the residues of each pair to ``(n, width)`` float32."""
        x = self.norm(vectors)
        numbers: Tensor = self.out(self.first(x), self.second(x), first, second)
        return numbers


class ChunkedOutput(OutputMap):
    """The last map, on the GELU of two sums of rows.

    It is one module for all chunks, because an engine that spreads parameters gathers them when a module is called, and
    all ranks must call each as often.
    """

    def forward(self, left: Tensor, right: Tensor, first: Tensor, second: Tensor) -> Tensor:  # type: ignore[override]
        """Rows `first` of `left` and `second` of `right`, ``(s, hidden)`` each, to ``(n, width)`` float32."""
        rows = max(1, CHUNK_BYTES // (4 * left.shape[1]))
        chunks = zip(torch.split(first, rows), torch.split(second, rows), strict=True)
        return torch.cat([recomputed(self._of_chunk, left, right, *chunk) for chunk in chunks])

    def _of_chunk(self, left: Tensor, right: Tensor, first: Tensor, second: Tensor) -> Tensor:
        return OutputMap.forward(self, F.gelu(left.index_select(0, first) + right.index_select(0, second)))
