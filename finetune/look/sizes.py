"""How much at a time and for how long: crop, bins, steps, passes, what of the encoder learns, and what that takes.

In: lengths, numbers of labels, a shape, a machine. Out: `RunSizes`. Kept: nothing. Time and memory are estimated by the
functions that a proposal for pretraining uses; no step is timed.
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from data.order.plan import SPECIAL_TOKENS
from pretrain.machine import Machine
from pretrain.model.memory import activation_bytes, forward_flops, memory_of, training_flops
from pretrain.model.presets import EsmShape
from pretrain.proposal import rules

FROZEN_BELOW = 1000
"""Labelled proteins below which the encoder learns nothing, and heads alone do."""
LONGEST = 1024
"""Tokens of the longest protein that ESM-2 was trained on, begin and end included (Lin et al. 2023)."""
_STEPS_A_PASS = 40
_LEAST_PROTEINS = 8
"""Proteins of a step at least, and at most where they are short."""
_MOST_STEP = 16_384
_BINS = 8
"""Bins of a step, or a multiple of it, so that 1 to 8 processes each have one, and 1, 2, 4 or 8 equally many."""
_LEAST_STEPS = {"frozen": 400, "lora": 300}
_PASSES = {"frozen": (20, 400), "lora": (5, 60)}
_PATIENCE = {"frozen": 10, "lora": 5}


@dataclass(frozen=True, slots=True)
class RunSizes:
    """Sizes of a run."""

    kind: str
    """What of the encoder learns: 'frozen' or 'lora'."""
    crop_tokens: int
    bin_tokens: int
    bins_per_step: int
    steps_per_pass: int
    passes: int
    patience: int
    seconds: float
    """Time of one member."""
    memory_bytes: float
    """Memory of one process."""

    @property
    def steps(self) -> int:
        """Steps of one member."""
        return self.passes * self.steps_per_pass

    @property
    def evaluate_every(self) -> int:
        """Steps between two validations: about a pass, and never each step."""
        return max(self.steps_per_pass, math.ceil(self.steps / 50))


def choose_crop(lengths: NDArray[np.int64], *, may_cut: bool) -> int:
    """Tokens that hold every protein, or as many as the model was trained on where a longer one may be cut."""
    longest = int(lengths.max(initial=1)) + SPECIAL_TOKENS
    whole = -(-longest // 32) * 32
    return min(whole, LONGEST) if may_cut else whole


def choose_sizes(
    lengths: NDArray[np.int64], num_training: int, labelled: int, crop: int, shape: EsmShape, machine: Machine
) -> RunSizes:
    """Choose the sizes.

    Args:
        lengths: (N,) residues of each labelled record, after they were cut.
        num_training: records that train.
        labelled: proteins with a label.
        crop: longest document in tokens.
        shape: of the encoder.
        machine: what trains.
    """
    kind = "frozen" if labelled < FROZEN_BELOW else "lora"
    documents = lengths.astype(np.float64) + SPECIAL_TOKENS
    mean = float(documents.mean())
    tokens = mean * num_training
    wanted = min(max(tokens / _STEPS_A_PASS, _LEAST_PROTEINS * mean), _MOST_STEP, max(tokens / 4, mean))
    bin_tokens = max(crop, rules.power_of_two(1.4 * wanted / _BINS))
    bins = _BINS * max(1, round(wanted / (_BINS * bin_tokens)))
    # A bin of long proteins has room for few of them, and is not full.
    fill = min(0.95, max(mean, bin_tokens // mean * mean) / bin_tokens)
    steps = max(1, math.ceil(tokens / (bin_tokens * bins * fill)))
    least, most = _PASSES[kind]
    passes = min(most, max(least, math.ceil(_LEAST_STEPS[kind] / steps)))
    squares = float((documents**2).mean()) * len(documents)
    share = num_training / max(len(documents), 1)
    speed = machine.flops * machine.processes
    if machine.kind == "cuda":
        speed *= rules.utilization(shape.num_parameters)
    all_tokens = mean * len(documents)
    forward = forward_flops(shape, all_tokens, squares, 0) / speed
    if kind == "frozen":
        heads = 6 * 2 * shape.dim**2 * num_training * passes / speed
        seconds = forward + heads + 0.005 * steps * passes
        memory = memory_of(shape, 0, machine, "adamw").libraries + 4.0 * shape.num_parameters
        memory += activation_bytes(shape, bin_tokens, checkpointing="layer")
    else:
        slowest = machine.cores * machine.processes * rules.CPU_TOKENS_PER_S if machine.kind == "cpu" else math.inf
        training = max(
            training_flops(shape, share * all_tokens, share * squares, 0) / speed, share * all_tokens / slowest
        )
        seconds = passes * (training + 0.2 * forward)
        found = memory_of(shape, bin_tokens, machine, "adamw")
        memory = found.libraries + found.activations + 4.0 * shape.num_parameters
    return RunSizes(kind, crop, bin_tokens, bins, steps, passes, _PATIENCE[kind], seconds, memory)
