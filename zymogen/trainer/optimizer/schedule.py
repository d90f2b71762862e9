"""The learning rate as a function of the tokens seen.

In: a schedule, tokens. Out: a rate. Kept: nothing.
"""

from zymogen.trainer.optimizer.settings import ScheduleSettings


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
