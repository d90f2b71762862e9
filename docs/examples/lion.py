"""Lion (Chen et al. 2023, arXiv:2302.06675) as an optimizer.

In a recipe beside this file:

[optimizer]
name = "lion:Lion"
options.beta2 = 0.99
"""

from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from zymogen.settings.section import IDENTITY, Section, setting
from zymogen.trainer.optimizer.kinds import OptimizerKind


@dataclass(frozen=True, kw_only=True, slots=True)
class Options(Section):
    """Settings that only Lion has."""

    section: ClassVar = "optimizer.options"
    beta1: float = setting(IDENTITY, "share of the momentum in the update", 0.9, at_least=0, below=1)
    beta2: float = setting(IDENTITY, "decay of the momentum", 0.99, at_least=0, below=1)


class Lion(OptimizerKind):
    """It keeps one tensor of each parameter, and wants a lower rate than AdamW."""

    Options = Options
    moments = 1
    peak_lr_at_128 = 4e-4

    def build(self, groups: list[dict[str, Any]]) -> torch.optim.Optimizer:
        """Return the optimizer over the parameter groups."""
        return _Lion(groups, {"lr": 0.0, "betas": (self.options.beta1, self.options.beta2)})


class _Lion(torch.optim.Optimizer):
    @torch.no_grad()
    def step(self, closure: None = None) -> None:
        """Move each parameter by the sign of its momentum and gradient."""
        for group in self.param_groups:
            beta1, beta2 = group["betas"]
            for parameter in (each for each in group["params"] if each.grad is not None):
                if "exp_avg" not in self.state[parameter]:
                    self.state[parameter]["exp_avg"] = torch.zeros_like(parameter)
                momentum = self.state[parameter]["exp_avg"]
                update = momentum.lerp(parameter.grad, 1 - beta1).sign_()
                momentum.lerp_(parameter.grad, 1 - beta2)
                parameter.mul_(1 - group["lr"] * group["weight_decay"]).sub_(group["lr"] * update)
