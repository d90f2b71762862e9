"""The optimizer, and the learning rate as a function of the tokens seen."""

import torch

from pretrain.model.initial import parameter_groups
from pretrain.model.masked_language_model import MaskedLanguageModel
from pretrain.recipe import OptimizerSettings, ScheduleSettings


def build(model: MaskedLanguageModel, settings: OptimizerSettings) -> torch.optim.AdamW:
    """AdamW over the model's named parameter groups; its learning rate is set before every step."""
    return torch.optim.AdamW(
        [dict(group) for group in parameter_groups(model, settings.weight_decay)],
        lr=0.0,
        betas=settings.betas,
        eps=settings.eps,
        fused=True,
    )


def learning_rate(schedule: ScheduleSettings, tokens: int) -> float:
    """Learning rate of the step that ends with `tokens` real tokens seen.

    Linear from 0 to the peak, linear down to ``final_lr`` of it at ``decay_end`` of the training, then constant
    (ESM-2: Lin et al. 2023, supplement A.2.4).
    """
    if tokens < schedule.warmup_tokens:
        return schedule.peak_lr * tokens / schedule.warmup_tokens
    end = schedule.decay_end * schedule.total_tokens
    left = max(0.0, (end - tokens) / (end - schedule.warmup_tokens))
    return schedule.peak_lr * (schedule.final_lr + (1.0 - schedule.final_lr) * left)
