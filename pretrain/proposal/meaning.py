"""What a recipe would mean for a corpus: passes and days, where they are out of proportion, and what would fit.

In: a recipe's sizes, facts about the corpus and the machine. Out: lines. Kept: nothing.
"""

from pretrain.model.presets import EsmShape
from pretrain.proposal import rules
from pretrain.proposal.corpus import CorpusFacts
from pretrain.proposal.estimates import tokens_per_s
from pretrain.proposal.machine import Machine
from pretrain.proposal.reasons import duration

_DAY_S = 86_400.0


def meant(
    total_tokens: int,
    shape: EsmShape,
    crop_tokens: int,
    bin_tokens: int,
    corpus: CorpusFacts,
    machine: Machine,
    sources: str,
) -> list[str]:
    """Two lines for a recipe that makes too many passes or takes too long; none for any other.

    Args:
        total_tokens: length of the recipe.
        shape: its model.
        crop_tokens: its crop.
        bin_tokens: its bin.
        corpus: what it would be trained on.
        machine: what would train it; its speed is estimated.
        sources: the corpus as it is typed on the command line.
    """
    pass_tokens = corpus.pass_tokens(crop_tokens)
    rate = tokens_per_s(shape, corpus, crop_tokens, machine)
    passes, seconds = total_tokens / pass_tokens, total_tokens / rate
    if passes <= rules.TOO_MANY_PASSES and seconds <= rules.TOO_MANY_DAYS * _DAY_S:
        return []
    fits = min(rules.MOST_PASSES * pass_tokens, rate * _DAY_S)
    fits = float(f"{max(fits, rules.LEAST_STEPS * rules.LEAST_STEP_TOKENS):.2g}")
    bins = max(round(rules.step_tokens(fits) / bin_tokens), machine.processes)
    return [
        f"length: {total_tokens:,} tokens are {passes:,.1f} passes over these {corpus.proteins:,} proteins, and would "
        f"take about {duration(seconds)} on {machine.name} (estimated)",
        f"length: what fits is schedule.total_tokens={fits:.0f} data.bins_per_step={bins} (about "
        f"{duration(fits / rate)}), or a recipe that is chosen for you: python -m pretrain {sources}",
    ]
