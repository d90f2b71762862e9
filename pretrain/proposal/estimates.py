"""The speed that is expected of a model on a machine where nothing was timed.

In: a shape, a machine, sizes. Out: numbers, by the rules alone; nothing is measured. Kept: nothing.
"""

from pretrain.machine import Machine
from pretrain.model.flops import training_flops
from pretrain.model.presets import EsmShape
from pretrain.proposal import rules
from pretrain.proposal.corpus import CorpusFacts

_TARGETS = 0.15
"""Share of the tokens that are predicted."""


def tokens_per_s(shape: EsmShape, corpus: CorpusFacts, crop_tokens: int, machine: Machine) -> float:
    """Real tokens a second of all processes together, where nothing was timed."""
    tokens = corpus.pass_tokens(crop_tokens)
    flops = training_flops(shape, tokens, corpus.pass_squares(crop_tokens), _TARGETS * tokens, pruned=True) / tokens
    rate = machine.flops / flops
    if machine.kind == "cuda":
        rate = min(rate * rules.utilization(shape.num_parameters), rules.GPU_TOKENS_PER_S)
    else:
        rate = min(rate, machine.cores * rules.CPU_TOKENS_PER_S)
    return machine.processes * rate
