"""Plan size: the tokens of a step and of a pass, before the first step is taken.

In: a plan. Out: `PlanSize`. Kept: nothing. Bins differ by a few tokens, so a number of steps is an estimate: it is
taken from all bins of the plan's first window, once for each stage of the curriculum.
"""

import math
from dataclasses import dataclass

import numpy as np

from data.order.plan import SPECIAL_TOKENS, Plan


@dataclass(frozen=True, slots=True)
class PlanSize:
    """How much a plan holds."""

    tokens_per_pass: int | None
    """Tokens of one pass over the corpus, pad tokens not counted; None of a stream or a mixture, whose end is not known
    or which has no passes."""
    is_exact: bool
    """Whether `tokens_per_epoch` was counted, not estimated from the first window."""
    stages: tuple[tuple[int, float], ...]
    """(tokens at which a stage begins, tokens of one of its steps), by rising beginning; the first begins at 0."""

    def steps(self, start: int, stop: int) -> int:
        """About how many steps take a run from `start` tokens to at least `stop`."""
        count = 0.0
        ends = [begin for begin, _ in self.stages[1:]] + [max(stop, self.stages[-1][0])]
        for (begin, tokens_per_step), end in zip(self.stages, ends, strict=True):
            count += max(0, min(stop, end) - max(start, begin)) / tokens_per_step
        return max(int(stop > start), math.ceil(count - 1e-9))


def plan_size(plan: Plan) -> PlanSize:
    """Measure a plan's first window; a stream waits for the records of that window."""
    settings = plan.settings
    begins = [0, *(end for end, _ in settings.curriculum)]
    stages, tokens = [], 0
    for begin in begins:
        bins = plan.window(0, 0, begin) or []
        tokens = sum(bin_.num_tokens for bin_ in bins)
        mean = tokens / len(bins) if bins else settings.bin_tokens
        stages.append((begin, settings.bins_per_step * mean))
    share = plan.sampler.share_of_first_window()
    return PlanSize(round(tokens / share) if share else None, share == 1, tuple(stages))


def tokens_per_epoch(plan: Plan) -> int:
    """Real tokens of the first pass, counted protein by protein; other passes have as many, except by clusters.

    Raises:
        ValueError: the plan's pass has no end, or its tokens depend on how much was trained before.
    """
    settings, sampler = plan.settings, plan.sampler
    if sampler.share_of_first_window() is None:
        raise ValueError(
            "schedule.passes is given, and a stream or a mixture has no pass whose tokens could be counted before the "
            "first step; give the length as schedule.total_tokens"
        )
    if settings.curriculum:
        raise ValueError(
            "schedule.passes is given beside data.curriculum, which changes the length of crops, so that passes differ "
            "in tokens; give the length as schedule.total_tokens"
        )
    tokens, window = 0, 0
    while (items := sampler.window(0, window)) is not None:
        tokens += int(np.minimum(plan.num_residues(items.samples) + SPECIAL_TOKENS, settings.crop_tokens).sum())
        window += 1
    return tokens
