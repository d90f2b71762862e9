"""Masking: which residues are targets and what the model sees in their place, keyed by what they are.

In: token ids with the sample and residue position of each. Out: corrupted ids and labels. Kept: nothing.

The key is (seed, corpus pass, sample, residue position), so a residue's fate does not depend on its crop, its bin, the
rank or the order in which anything ran, and the next pass masks anew.
"""

import numpy as np
from numpy.typing import NDArray

from data import draw
from data.alphabet import IS_TARGET, MASK, STANDARD_IDS
from data.batch import IGNORED
from data.settings import MaskSettings


def corrupt(
    tokens: NDArray[np.uint8],
    samples: NDArray[np.int64],
    residues: NDArray[np.int64],
    settings: MaskSettings,
    seed: int,
    pass_index: int,
) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Select targets and corrupt the input at them.

    Args:
        tokens: (slots,) true token ids; only residues (`alphabet.IS_TARGET`) can be selected.
        samples: (slots,) record id of each slot.
        residues: (slots,) position of each slot's residue in its whole protein.
        settings: the rates.
        seed: seed of the run.
        pass_index: pass over the corpus that the record belongs to.

    Returns:
        Inputs (slots,) uint8 and labels (slots,) int64, `batch.IGNORED` where a slot is no target.
    """
    drawn = draw.hashes(draw.hashes(draw.key(seed, draw.SELECT, pass_index), samples), residues)
    selected = np.flatnonzero(draw.below(drawn, settings.select_prob) & IS_TARGET[tokens])
    labels = np.full(tokens.shape, IGNORED, np.int64)
    labels[selected] = tokens[selected]

    inputs = tokens.copy()
    fate = draw.hashes(draw.hashes(draw.key(seed, draw.REPLACE, pass_index), samples[selected]), residues[selected])
    masked = draw.below(fate, settings.mask_prob)
    replaced = draw.below(fate, settings.mask_prob + settings.random_prob) & ~masked
    inputs[selected[masked]] = MASK
    # The fate's hash is spent: its size told that it lies in [mask_prob, mask_prob + random_prob). Hash it once more.
    inputs[selected[replaced]] = STANDARD_IDS[draw.integers(draw.hashes(0, fate[replaced]), len(STANDARD_IDS))]
    return inputs, labels
