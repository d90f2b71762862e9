"""An adapter of low rank: what is added to each adapted map, in our layout, and its plan, which has no numbers yet.

In: nothing; these are the types. Out: the change of a map. Kept: nothing.

With base weights W ``(out, in)``, A ``(rank, in)``, B ``(out, rank)`` and a scale s, an adapted map multiplies by
``W + s B A`` (LoRA: Hu et al. 2021, arXiv:2106.09685). With magnitudes m ``(out,)``, row i of that is divided by its
length and multiplied by ``m[i]`` (DoRA: Liu et al. 2024, arXiv:2402.09353, equation 5; its columns are our rows).
"""

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class AdapterPlan:
    """Which maps of a model have adapters, and of which rank."""

    maps: tuple[str, ...]
    """Full path of each adapted map in our model, such as ``encoder.layers.0.attention.qkv``."""
    rank: int
    alpha: float
    use_rslora: bool = False
    """Whether the factor on B A is alpha over the root of the rank, not alpha over the rank."""
    use_dora: bool = False

    @property
    def scale(self) -> float:
        """Factor on B A."""
        return self.alpha / (math.sqrt(self.rank) if self.use_rslora else self.rank)


class LowRank(NamedTuple):
    """The adapter of one map, float32 on the host."""

    a: Tensor
    """(rank, in)"""
    b: Tensor
    """(out, rank)"""
    scale: float
    magnitude: Tensor | None = None
    """(out,) with DoRA."""

    def merged(self, base: Tensor) -> Tensor:
        """What the adapted map multiplies by, ``(out, in)``, of the base weights ``(out, in)``."""
        changed = base + self.scale * (self.b @ self.a)
        if self.magnitude is None:
            return changed
        lengths: Tensor = torch.linalg.vector_norm(changed, dim=1)
        return changed * (self.magnitude / lengths)[:, None]
