"""Masking: which residues are targets and what the model sees in their place, drawn by keys.

In: the token ids of documents, with the sample, the pass and the place in the protein of each. Out: corrupted ids and
targets. Kept: nothing.

The key is (seed, pass of the corpus, sample id, position of the residue). So masking does not depend on the crop, the
bin, the rank or the order of computation, and each pass draws other masks.
"""

from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from data.alphabet import IS_TARGET, MASK, STANDARD_IDS
from data.batches.settings import MaskSettings
from data.order.plan import Bin
from zymogen import keyed_random
from zymogen.compiled import compiled


def corrupt(
    tokens: NDArray[np.uint8], bin_: Bin, mask: MaskSettings, seed: int
) -> tuple[NDArray[np.uint8], NDArray[np.int32]]:
    """Select targets and corrupt the input at them.

    Args:
        tokens: (slots,) true token ids of the documents, concatenated; only residues of `alphabet.IS_TARGET` can be
            selected.
        bin_: the bin of these tokens.
        mask: the share of targets, and how they are corrupted.
        seed: seed of the run.

    Returns:
        Inputs, (slots,) uint8, and the slots of the targets, (targets,) int32, ascending.
    """
    first = int(bin_.epochs[0])
    if (bin_.epochs == first).all():
        keys = np.repeat(_keys(seed, first), len(bin_.epochs), axis=0)
    else:
        keys = np.concatenate([_keys(seed, pass_index) for pass_index in bin_.epochs.tolist()])
    limits = mask.select_prob, mask.mask_prob, mask.mask_prob + mask.random_prob
    inputs, targets = np.empty_like(tokens), np.empty(len(tokens), np.int32)
    documents = bin_.samples, bin_.starts, bin_.lengths
    kernel = compiled(_corrupt, _hashed, keyed_random.mixed)
    count = kernel(tokens, keys, *documents, *_thresholds(*limits), inputs, targets)
    return inputs, targets[:count]


@lru_cache(maxsize=256)
def _keys(seed: int, pass_index: int) -> NDArray[np.uint64]:
    """(1, 2) keys of a pass: for the selection of targets, and for what replaces them."""
    return np.array(
        [[keyed_random.key(seed, use, pass_index) for use in (keyed_random.SELECT, keyed_random.REPLACE)]], np.uint64
    )


@lru_cache(maxsize=256)
def _thresholds(*limits: float) -> tuple[NDArray[np.uint64], NDArray[np.bool_]]:
    """The largest hash below each threshold, and whether there is one; the threshold itself may be 2**64."""
    thresholds = [keyed_random.threshold(limit) for limit in limits]
    return np.array([max(t - 1, 0) for t in thresholds], np.uint64), np.array([t > 0 for t in thresholds])


def _hashed(key: Any, counter: Any) -> Any:
    """`keyed_random.hashes` of one counter, for the kernel."""
    return keyed_random.mixed((counter + np.uint64(1)) * keyed_random.GOLDEN + key)


def _corrupt(tokens, keys, samples, starts, lengths, most, possible, inputs, targets):  # type: ignore[no-untyped-def]
    """Write inputs and the slots of targets; return the number of targets. `_thresholds` gives `most`, `possible`."""
    slot = count = np.uint64(0)  # unsigned, so that numba need not check whether an index is negative
    one = np.uint64(1)
    never = not possible[0]
    select_most, masked_most, replaced_most = most[0], most[1], most[2]
    can_mask, can_replace = possible[1], possible[2]
    for document in range(len(lengths)):
        sample = np.uint64(samples[document])
        select_key, replace_key = _hashed(keys[document, 0], sample), _hashed(keys[document, 1], sample)
        residue = np.uint64(starts[document] - 1)
        for _ in range(lengths[document]):
            token = tokens[slot]
            inputs[slot] = token
            if _hashed(select_key, residue) <= select_most and IS_TARGET[token] and not never:
                targets[count] = slot
                count += one
                fate = _hashed(replace_key, residue)
                if fate <= masked_most and can_mask:
                    inputs[slot] = MASK
                elif fate <= replaced_most and can_replace:
                    upper = (_hashed(np.uint64(0), fate) >> np.uint64(32)) * np.uint64(len(STANDARD_IDS))
                    inputs[slot] = STANDARD_IDS[upper >> np.uint64(32)]
            residue += one
            slot += one
    return count
