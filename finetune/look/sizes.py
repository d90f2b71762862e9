"""How much at a time and for how long: crop, bins, steps, epochs, and what of the encoder learns.

In: lengths, numbers of labels. Out: `RunSizes`. Kept: nothing.
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from data.order.plan import SPECIAL_TOKENS
from pretrain.proposal import rules

FROZEN_BELOW = 1000
"""Labelled proteins below which the encoder learns nothing, and heads alone do."""
LONGEST = 1024
"""Tokens of the longest protein that ESM-2 was trained on, begin and end included (Lin et al. 2023)."""
_STEPS_PER_EPOCH = 40
_LEAST_PROTEINS = 8
"""Proteins of a step at least, and at most where they are short."""
_MOST_STEP = 16_384
_BINS = 8
"""Bins of a step, or a multiple of it, so that 1 to 8 processes each have one, and 1, 2, 4 or 8 equally many."""
_LEAST_STEPS = {"frozen": 400, "lora": 300}
_EPOCHS = {"frozen": (20, 400), "lora": (5, 60)}
_PATIENCE = {"frozen": 10, "lora": 5}


@dataclass(frozen=True, slots=True)
class RunSizes:
    """Sizes of a run."""

    kind: str
    """What of the encoder learns: 'frozen' or 'lora'."""
    crop_tokens: int
    bin_tokens: int
    bins_per_step: int
    steps_per_epoch: int
    epochs: int
    patience: int

    @property
    def steps(self) -> int:
        """Steps of one member."""
        return self.epochs * self.steps_per_epoch

    @property
    def evaluate_every(self) -> int:
        """Steps between two validations: about an epoch, and never each step."""
        return max(self.steps_per_epoch, math.ceil(self.steps / 50))


def choose_crop(lengths: NDArray[np.int64], *, may_cut: bool) -> int:
    """Tokens that hold every protein, or as many as the model was trained on where a longer one may be cut."""
    longest = int(lengths.max(initial=1)) + SPECIAL_TOKENS
    whole = -(-longest // 32) * 32
    return min(whole, LONGEST) if may_cut else whole


def choose_sizes(lengths: NDArray[np.int64], num_training: int, labelled: int, crop: int) -> RunSizes:
    """Choose the sizes.

    Args:
        lengths: (N,) residues of each labelled record, after they were cut.
        num_training: records that train.
        labelled: proteins with a label.
        crop: longest document in tokens.
    """
    kind = "frozen" if labelled < FROZEN_BELOW else "lora"
    documents = lengths.astype(np.float64) + SPECIAL_TOKENS
    mean = float(documents.mean())
    tokens = mean * num_training
    wanted = min(max(tokens / _STEPS_PER_EPOCH, _LEAST_PROTEINS * mean), _MOST_STEP, max(tokens / 4, mean))
    bin_tokens = max(crop, rules.power_of_two(1.4 * wanted / _BINS))
    bins = _BINS * max(1, round(wanted / (_BINS * bin_tokens)))
    # A bin of long proteins has room for few of them, and is not full.
    fill = min(0.95, max(mean, bin_tokens // mean * mean) / bin_tokens)
    steps = max(1, math.ceil(tokens / (bin_tokens * bins * fill)))
    least, most = _EPOCHS[kind]
    epochs = min(most, max(least, math.ceil(_LEAST_STEPS[kind] / steps)))
    return RunSizes(kind, crop, bin_tokens, bins, steps, epochs, _PATIENCE[kind])
