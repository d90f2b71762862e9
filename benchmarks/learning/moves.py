"""Trials of how Muon moves a matrix, which are no settings of a recipe.

In: `Tried.asked`, names in `MOVES` and their numbers. Out: an optimizer that takes Muon's place. Kept: nothing of it is
in a checkpoint, so a run with such a trial cannot be continued as if nothing had happened.
"""

import math
from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from zymogen.trainer.optimizer.muon import RMS, Muon

MOVES = {
    "normuon": "Each row of an orthogonal factor is divided by the root of a running mean of its squares, whose decay "
    "is the number, and the factor keeps its length (Li et al. 2025, arXiv:2510.05491, algorithm 1)",
    "cautious": "A weight decays only where its update does not move it away from 0 (Chen et al. 2025, "
    "arXiv:2510.12402)",
    "spectral": "An update's spectral norm follows the root of rows over columns, as Muon's author has it, times a "
    "number that leaves square matrices as they are; wide matrices move less",
    "average": "The last weights are a running mean over steps, whose decay is the number",
}
"""Name -> what it does. The number of the second and the third means nothing."""
_ROOT_OF_ZERO = 1e-8


class Tried(Muon):
    """Muon as the trials of this process ask for it; whole matrices alone, so no sharding."""

    asked: ClassVar[dict[str, float]] = {}

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._squares: dict[nn.Parameter, Tensor] = {}
        self._means: dict[nn.Parameter, Tensor] = {}

    def _moved(self, group: dict[str, Any], matrices: Sequence[nn.Parameter], factors: Tensor) -> Tensor:
        rate, decay, (rows, columns) = group["lr"], group["weight_decay"], factors.shape[1:]
        rows //= group["blocks"]
        rms = RMS * math.sqrt(max(rows, columns))
        if "normuon" in self.asked:
            factors = self._by_rows(matrices, factors, group["blocks"])
        if "spectral" in self.asked:
            rms = RMS * math.sqrt(min(rows, columns) * rows / columns)
        weights = torch.stack(list(matrices))
        if "cautious" in self.asked:
            decayed = torch.where(factors * weights >= 0, 1 - rate * decay, 1.0)
            return (weights * decayed).add_(factors, alpha=-rate * rms)
        return weights.mul_(1 - rate * decay).add_(factors, alpha=-rate * rms)

    def _by_rows(self, matrices: Sequence[nn.Parameter], factors: Tensor, blocks: int) -> Tensor:
        """Factors with rows of about one length, each map as long as before."""
        found = []
        for matrix, factor in zip(matrices, factors, strict=True):
            squares = self._squares.setdefault(matrix, torch.zeros(len(factor), 1, device=factor.device))
            squares.lerp_(factor.float().square().mean(1, keepdim=True), 1 - self.asked["normuon"])
            maps, even = (each.reshape(blocks, -1) for each in (factor, factor / (squares.sqrt() + _ROOT_OF_ZERO)))
            even *= maps.norm(dim=1, keepdim=True) / even.norm(dim=1, keepdim=True)
            found.append(even.view_as(factor))
        return torch.stack(found)

    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Take Muon's step, and the mean of the weights after it."""
        super().step(closure)
        for parameter in self._all() if "average" in self.asked else ():
            mean = self._means.setdefault(parameter, parameter.detach().clone())
            mean.lerp_(parameter.detach(), 1 - self.asked["average"])

    @torch.no_grad()
    def take_means(self) -> None:
        """Give every parameter the mean of its values over steps, where there is one."""
        for parameter, mean in self._means.items():
            parameter.copy_(mean)

    def _all(self) -> list[nn.Parameter]:
        return [parameter for group in self.param_groups for parameter in group["params"]]
