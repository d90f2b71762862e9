"""The head of one task with O outputs: from vectors to the numbers of each target.

In: vectors of documents or residues, and which of them each target reads. Out: numbers of the targets, never rounded to
less than float32. Kept: the parameters. Two forms: LayerNorm and an MLP, or exactly the heads of transformers' ESM
classes. For ordered classes, `OrderedThresholds` turns one score into cumulative logits (McCullagh, 1980).

`PairHead`: a protein of L residues has L (L - 1) / 2 pairs. What depends on one residue is computed once. What depends
on a pair is wide, and is held for one chunk of pairs at a time; the backward pass computes it again.
"""

from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from finetune.tasks.task import Task
from pretrain.model.layer import recomputed
from pretrain.model.linear import Linear
from pretrain.model.presets import EsmShape

if TYPE_CHECKING:
    from finetune.heads.settings import HeadSettings


class OutputMap(Linear):
    """A linear map that is computed in float32 under autocast too; a float64 model stays float64."""

    def forward(self, x: Tensor) -> Tensor:
        """Map ``(..., in)`` to ``(..., out)``."""
        with torch.autocast(x.device.type, enabled=False):
            dtype = torch.promote_types(x.dtype, torch.float32)
            bias = None if self.bias is None else self.bias.to(dtype)
            return F.linear(x.to(dtype), self.weight.to(dtype), bias)


class MlpHead(nn.Module):
    """LayerNorm and two maps with a GELU between them."""

    def __init__(self, shape: EsmShape, hidden: int, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(shape.dim, eps=shape.layer_norm_eps)
        self.dense, self.out = Linear(shape.dim, hidden), OutputMap(hidden, width)

    def forward(self, vectors: Tensor) -> Tensor:
        """Map ``(n, W)`` to ``(n, width)`` float32."""
        numbers: Tensor = self.out(F.gelu(self.dense(self.norm(vectors))))
        return numbers


class ClassificationHead(nn.Module):
    """transformers' `EsmClassificationHead` without dropout; it reads the begin token."""

    def __init__(self, shape: EsmShape, width: int) -> None:
        super().__init__()
        self.dense, self.out_proj = Linear(shape.dim, shape.dim), OutputMap(shape.dim, width)

    def forward(self, vectors: Tensor) -> Tensor:
        """Map ``(n, W)`` to ``(n, width)`` float32."""
        numbers: Tensor = self.out_proj(torch.tanh(self.dense(vectors)))
        return numbers


CHUNK_BYTES = 1 << 24
"""Bytes of one float32 tensor of a chunk's hidden channels."""


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


LEAST_GAP = 1e-3
"""Least distance of two thresholds, so that no class between them has a probability of 0 in float32."""


class OrderedThresholds(nn.Module):
    """C - 1 thresholds for each of O tasks, ascending whatever the parameters are.

    Their mean is 0: where they lie as a whole is for the head's bias. So two classes need no parameter.
    """

    def __init__(self, outputs: int, classes: int) -> None:
        """Equal distances until they are learned."""
        super().__init__()
        self.shape = outputs, classes - 2
        if classes > 2:  # an engine would get a parameter of no elements
            self.gaps = nn.Parameter(torch.zeros(outputs * (classes - 2)))

    def forward(self, scores: Tensor, outputs: Tensor) -> Tensor:
        """Scores ``(n,)`` of the tasks `outputs` ``(n,)`` int64 to logits ``(n, C - 1)``, descending.

        The k-th one, from 0, is of the event that the class is above k: score minus threshold.
        """
        if not self.shape[1]:
            return scores[:, None]
        gaps = F.softplus(self.gaps.view(self.shape)) + LEAST_GAP
        thresholds = F.pad(gaps.cumsum(1), (1, 0))
        thresholds = thresholds - thresholds.mean(1, keepdim=True)
        return scores[:, None] - thresholds.to(scores.dtype)[outputs]


class TaskHead(nn.Module):
    """The head of one objective with O tasks.

    Raises:
        ValueError: the head is not for the task's level.
    """

    def __init__(self, objective: Task, settings: "HeadSettings", shape: EsmShape) -> None:
        super().__init__()
        task, head = objective.settings, settings.kind
        head.require_level(task)
        self.shape = len(objective.outputs), *task.kind.shape(len(objective.classes))
        self.map = head.build(shape, settings.hidden or shape.dim, objective.width, task.level)
        self.thresholds = task.kind.output_module(len(objective.outputs), len(objective.classes))

    def forward(self, vectors: Tensor, rows: Tensor, outputs: Tensor, partners: Tensor | None = None) -> Tensor:
        """The numbers of each target: ``(n,)``, or ``(n, C)`` logits of C classes, or ``(n, C - 1)`` cumulative ones.

        Args:
            vectors: ``(m, W)`` of documents or residues.
            rows: ``(n,)`` int64: which of them each target reads.
            outputs: ``(n,)`` int64: the task of each target, 0 to O - 1.
            partners: for pairs ``(n,)`` int64, the row of the second residue.
        """
        if partners is not None:
            numbers = self.map(vectors, rows, partners)
            rows = torch.arange(len(rows), device=rows.device)
        else:
            numbers = self.map(vectors)
        picked: Tensor = numbers.unflatten(1, self.shape)[rows, outputs]
        return picked if self.thresholds is None else self.thresholds(picked, outputs)
