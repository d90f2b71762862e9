"""What a recipe would mean for a corpus: passes and days, where they are out of proportion, and what would fit.

In: a recipe's sizes, facts about the corpus and the machine. Out: lines. Kept: nothing.
"""

from pretrain.machine import Machine
from pretrain.model.presets import EsmShape
from pretrain.proposal import rules
from pretrain.proposal.corpus import CorpusFacts
from pretrain.proposal.estimates import tokens_per_s
from zymogen.console.format import count, duration

_DAY_S = 86_400.0


def check_proportions(
    total_tokens: int,
    shape: EsmShape,
    crop_tokens: int,
    bin_tokens: int,
    corpus: CorpusFacts,
    machine: Machine,
    command: str,
) -> list[str]:
    """Two lines for a recipe that makes too many passes or takes too long; none for any other.

    What fits keeps the recipe's bins if they are small enough for `LEAST_STEPS`, and is no more than a recipe that is
    chosen where not even bins of one crop are.

    Args:
        total_tokens: length of the recipe.
        shape: its model.
        crop_tokens: its crop.
        bin_tokens: its bin.
        corpus: what it would be trained on.
        machine: what would train it; its speed is estimated.
        command: what to type for a recipe that is chosen.
    """
    pass_tokens = corpus.pass_tokens(crop_tokens)
    rate = tokens_per_s(shape, corpus, crop_tokens, machine)
    passes, seconds = total_tokens / pass_tokens, total_tokens / rate
    if passes <= rules.TOO_MANY_PASSES and seconds <= rules.TOO_MANY_DAYS * _DAY_S:
        return []
    fits = min(rules.MOST_PASSES * pass_tokens, rate * _DAY_S)
    fits = float(f"{max(fits, rules.LEAST_STEPS * rules.LEAST_STEP_TOKENS):.2g}")
    if total_tokens <= fits:
        return []
    most_slots = fits / rules.LEAST_STEPS
    bin_ = min(bin_tokens, rules.power_of_two(most_slots / machine.processes))
    bins = machine.processes * max(1, int(min(rules.step_tokens(fits), most_slots) / (machine.processes * bin_)))
    smaller = f" data.bin_tokens={bin_}" if bin_ < bin_tokens else ""
    own = f"schedule.total_tokens={fits:.0f} data.bins_per_step={bins}{smaller} (about {duration(fits / rate)}), or "
    return [
        f"length: {total_tokens:,} tokens are {passes:,.1f} passes over these {count(corpus.num_records, 'protein')}, "
        f"and would take about {duration(seconds)} on {machine.name} (estimated)",
        f"length: what fits is {own if bin_ >= crop_tokens else ''}a recipe that is chosen for you: {command}",
    ]
