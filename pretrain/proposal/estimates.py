"""Estimates for a model on a machine: memory and speed.

In: a shape, a machine, sizes. Out: numbers, by the rules alone; nothing is measured. Kept: nothing.
"""

from pretrain.model.flops import training_flops
from pretrain.model.presets import EsmShape
from pretrain.proposal import rules
from pretrain.proposal.corpus import CorpusFacts
from pretrain.proposal.machine import Machine

_TARGETS = 0.15
"""Share of the tokens that are predicted."""


def memory_bytes(shape: EsmShape, slots: int, optimizer: str, machine: Machine) -> float:
    """Memory of one process that trains with this many slots at once: on a GPU that of the device, else of the host."""
    state = rules.STATE_BYTES[optimizer] * shape.num_parameters
    activations = rules.ACTIVATION_BYTES[machine.precision] * slots * shape.dim * shape.layers
    return rules.PROCESS_BYTES[machine.kind] + state + activations


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
