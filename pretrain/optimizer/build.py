"""The optimizer, and the learning rate as a function of the tokens seen."""

from collections.abc import Iterable

import torch

from pretrain.optimizer.groups import ParameterGroup
from pretrain.optimizer.muon import Muon
from pretrain.optimizer.settings import OptimizerSettings, ScheduleSettings


def build_optimizer(groups: Iterable[ParameterGroup], settings: OptimizerSettings) -> torch.optim.Optimizer:
    """The recipe's optimizer over a model's named parameter groups; its learning rate is set before every step.

    Both kinds can skip a step without the host: if the attribute `found_inf`, a float32 scalar tensor on the device, is
    1, a step leaves weights and state as they are (the protocol of torch's GradScaler for fused optimizers).
    """
    own = [dict(group) for group in groups]
    if settings.name == "muon":
        return Muon(
            own,
            momentum=settings.momentum,
            newton_schulz=settings.newton_schulz,
            betas=settings.betas,
            eps=settings.eps,
        )
    return torch.optim.AdamW(own, lr=0.0, betas=settings.betas, eps=settings.eps, fused=True)


def learning_rate(schedule: ScheduleSettings, tokens: int) -> float:
    """Learning rate of the step that ends with `tokens` real tokens seen.

    Linear from 0 to the peak, constant until ``decay_start`` of the training, linear down to ``final_lr`` of the peak
    at ``decay_end``, then constant. Without a ``decay_start``, the decay follows the warm-up (ESM-2: Lin et al. 2023,
    supplement A.2.4); with one, this is warm-up, stable, decay (WSD: Hu et al. 2024, arXiv:2404.06395, section 4.2).
    """
    warmup, peak = schedule.warmup_length, schedule.peak
    if tokens < warmup:
        return peak * tokens / warmup
    start = max(warmup, schedule.decay_start * schedule.total_tokens)
    end = schedule.decay_end * schedule.total_tokens
    left = min(1.0, max(0.0, (end - tokens) / (end - start)))
    return peak * (schedule.final_lr + (1.0 - schedule.final_lr) * left)


def num_stored(optimizer: torch.optim.Optimizer) -> int:
    """Numbers that a checkpoint holds, in float32: the parameters that are moved, and the moments of each.

    Args:
        optimizer: as `build_optimizer` returned it; its parameters may be on the meta device.
    """
    of_groups = ((group["params"], 1 if group.get("blocks") is not None else 2) for group in optimizer.param_groups)
    return sum(parameter.numel() * (1 + moments) for parameters, moments in of_groups for parameter in parameters)
