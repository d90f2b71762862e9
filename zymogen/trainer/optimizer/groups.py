"""Parameter groups, the optimizer over them, and the learning rate as a function of the tokens seen.

In: a model. Out: its trainable parameters in named groups: which of them decay, which Muon moves, and how fast each
group learns; a torch optimizer. Kept: nothing.
"""

from collections.abc import Iterable
from typing import NotRequired, TypedDict

import torch
from torch import Tensor, nn

from zymogen.trainer.optimizer.muon import Muon
from zymogen.trainer.optimizer.settings import OptimizerSettings, ScheduleSettings


class ParameterGroup(TypedDict):
    """A group as torch's optimizers take it, with a name for readers."""

    name: str
    params: list[nn.Parameter]
    weight_decay: float
    blocks: NotRequired[int]
    """Only where Muon moves this group: how many maps, stacked by rows, each of its matrices holds."""
    lr_scale: NotRequired[float]
    """Factor on the schedule's learning rate for this group; 1 where it is left out."""


def parameter_groups(model: nn.Module, settings: OptimizerSettings) -> list[ParameterGroup]:
    """Trainable parameters in groups, each parameter once, in module order.

    `decay` holds the matrices, the embedding among them; `no_decay` holds biases and LayerNorm weights, which
    have one dimension and set a scale rather than a map. With Muon, the matrices of the encoder's layers come first, in
    groups of their own: `muon_1` holds those that are one map, `muon_3` those that are three maps stacked by rows, and
    so on; the int `blocks` of a matrix's module gives the number (1 where it has none).

    Raises:
        ValueError: `blocks` is not a number that divides the rows, or there is no matrix for Muon.
    """
    muon, weight_decay = settings.name == "muon", settings.weight_decay
    by_blocks: dict[int, list[nn.Parameter]] = {}
    decay: list[nn.Parameter] = []
    no_decay: list[nn.Parameter] = []
    seen: set[nn.Parameter] = set()
    for prefix, module in model.named_modules():
        for name, parameter in module.named_parameters(recurse=False):
            if parameter in seen or not parameter.requires_grad:
                continue
            seen.add(parameter)
            if muon and parameter.ndim == 2 and prefix.startswith("encoder.layers."):
                by_blocks.setdefault(_blocks(module, f"{prefix}.{name}", parameter), []).append(parameter)
            else:
                (decay if parameter.ndim >= 2 else no_decay).append(parameter)
    if muon and not by_blocks:
        raise ValueError(
            f"no trainable matrix of {type(model).__name__} is called encoder.layers.*, which is what Muon moves; "
            "set optimizer.name to 'adamw'"
        )
    groups: list[ParameterGroup] = [
        {"name": f"muon_{blocks}", "params": by_blocks[blocks], "weight_decay": weight_decay, "blocks": blocks}
        for blocks in sorted(by_blocks)
    ]
    return [
        *groups,
        {"name": "decay", "params": decay, "weight_decay": weight_decay},
        {"name": "no_decay", "params": no_decay, "weight_decay": 0.0},
    ]


def _blocks(owner: nn.Module, name: str, matrix: Tensor) -> int:
    blocks = getattr(owner, "blocks", 1)
    if not isinstance(blocks, int) or blocks < 1 or matrix.shape[0] % blocks:
        raise ValueError(
            f"{name} has {matrix.shape[0]} rows and its module says blocks = {blocks!r}; it must be the number of maps "
            "that are stacked by rows, which divides them"
        )
    return blocks


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
