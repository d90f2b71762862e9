"""An adapter of low rank: what is added to each adapted map, in our layout, and its plan, which has no numbers yet.

In: nothing; these are the types. Out: the change of a map. Kept: nothing.

With base weights W ``(out, in)``, A ``(rank, in)``, B ``(out, rank)`` and a scale s, an adapted map multiplies by
``W + s B A`` (LoRA: Hu et al. 2021, arXiv:2106.09685). With magnitudes m ``(out,)``, row i of that is divided by its
length and multiplied by ``m[i]`` (DoRA: Liu et al. 2024, arXiv:2402.09353, equation 5; its columns are our rows).
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor


class MapPlan(NamedTuple):
    """The adapter of one map."""

    rank: int
    scale: float
    """Factor on B A."""


@dataclass(frozen=True, slots=True)
class AdapterPlan:
    """Which maps of a model have adapters, and of which rank."""

    maps: Mapping[str, MapPlan]
    """Full path of a linear map in our model, such as ``encoder.layers.0.attention.qkv`` -> its adapter."""
    use_rslora: bool = False
    """Whether the scale is understood as alpha over the root of the rank, not alpha over the rank."""
    use_dora: bool = False

    def alpha(self, plan: MapPlan) -> float:
        """The alpha that gives a map's scale; a whole number where it is one except for rounding."""
        alpha = plan.scale * (math.sqrt(plan.rank) if self.use_rslora else plan.rank)
        return float(round(alpha)) if math.isclose(alpha, round(alpha), rel_tol=1e-12) else alpha


class LowRank(NamedTuple):
    """The adapter of one map, float32 on the host."""

    a: Tensor
    """(rank, in)"""
    b: Tensor
    """(out, rank)"""
    scale: float
    magnitude: Tensor | None = None
    """(out,) with DoRA. NaN where a published adapter leaves a part of a fused map as it is: that row's own length."""

    def merged(self, base: Tensor) -> Tensor:
        """What the adapted map multiplies by, ``(out, in)``, of the base weights ``(out, in)``."""
        changed = base + self.scale * (self.b @ self.a)
        if self.magnitude is None:
            return changed
        lengths: Tensor = torch.linalg.vector_norm(changed, dim=1)
        return changed * (self.magnitude / lengths)[:, None]


@dataclass(frozen=True, slots=True)
class Adapter:
    """Adapters of a model's maps."""

    maps: Mapping[str, LowRank]
    """By full path, as in `AdapterPlan`."""
    use_rslora: bool = False

    @property
    def plan(self) -> AdapterPlan:
        """Ranks and scales without the numbers."""
        maps = {path: MapPlan(len(of_map.a), of_map.scale) for path, of_map in self.maps.items()}
        return AdapterPlan(maps, self.use_rslora, any(m.magnitude is not None for m in self.maps.values()))
