"""A head: one map decides how much of another passes. In a recipe: heads.form = "gated:Gated"."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from finetune.heads.head import OutputMap
from finetune.heads.kinds import Head
from finetune.tasks.settings import Level
from pretrain.model.presets import EsmShape
from zymogen.settings.section import IDENTITY, Section, setting


@dataclass(frozen=True, kw_only=True, slots=True)
class GatedOptions(Section):
    """Settings of this head."""

    section: ClassVar = "heads.options"
    bias: float = setting(IDENTITY, "added to a gate: above 0 it is open at first", 1.0)


class Gated(Head):
    """A head for sequences and for residues."""

    Options = GatedOptions
    options: GatedOptions
    levels = frozenset({"sequence", "residue"})

    def build(self, shape: EsmShape, hidden: int, width: int, level: Level) -> nn.Module:
        """Return the module of one task."""
        return GatedMap(shape.dim, hidden, width, self.options.bias)


class GatedMap(nn.Module):
    """Vectors ``(n, dim)`` to ``(n, width)``."""

    def __init__(self, dim: int, hidden: int, width: int, bias: float) -> None:
        super().__init__()
        self.norm, self.bias = nn.LayerNorm(dim), bias
        self.value, self.gate = nn.Linear(dim, hidden), nn.Linear(dim, hidden)
        self.out = OutputMap(hidden, width)  # float32 under autocast, too

    def forward(self, vectors: Tensor) -> Tensor:
        """Gate each channel."""
        x = self.norm(vectors)
        numbers: Tensor = self.out(torch.sigmoid(self.gate(x) + self.bias) * self.value(x))
        return numbers
