"""The head of one task table: from vectors to the numbers of each target.

In: vectors of documents or residues, and which of them each target reads. Out: numbers of the targets, float32. Kept:
the parameters. Two forms: LayerNorm and an MLP, or exactly the heads of transformers' ESM classes.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from finetune.heads.output import OutputMap
from finetune.heads.pair import PairHead
from finetune.heads.settings import HeadSettings
from finetune.heads.thresholds import OrderedThresholds
from finetune.tasks.objective import Task
from pretrain.model.linear import Linear
from pretrain.model.presets import EsmShape


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


class TaskHead(nn.Module):
    """The head of one objective with O tasks.

    Raises:
        ValueError: transformers has no head of that form for the task's level.
    """

    def __init__(self, objective: Task, settings: HeadSettings, shape: EsmShape) -> None:
        super().__init__()
        task, hidden = objective.settings, settings.hidden or shape.dim
        self.outputs, self.is_multiclass = len(objective.outputs), task.type == "multiclass"
        self.map: nn.Module
        if settings.form == "mlp":
            head = PairHead if task.level == "pair" else MlpHead
            self.map = head(shape, hidden, objective.width)
        elif task.level == "pair":
            raise ValueError(
                f"heads.form is 'transformers', and task {task.name!r} is about pairs of residues, for which "
                "transformers has no head; set heads.form to 'mlp'"
            )
        elif task.level == "sequence":
            self.map = ClassificationHead(shape, objective.width)
        else:  # as in EsmForTokenClassification
            self.map = OutputMap(shape.dim, objective.width)
        self.thresholds = OrderedThresholds(self.outputs, len(objective.classes)) if task.type == "ordinal" else None

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
        if self.is_multiclass:
            numbers = numbers.unflatten(1, (self.outputs, -1))
        picked: Tensor = numbers[rows, outputs]
        return picked if self.thresholds is None else self.thresholds(picked, outputs)
