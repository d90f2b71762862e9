"""Masking: which residues are targets and what the model sees in their place, drawn by keys.

In: the token ids of documents, with the sample, the pass and the place in the protein of each. Out: corrupted ids and
targets. Kept: nothing.

The key is (seed, pass of the corpus, sample id, position of the residue). So masking does not depend on the crop, the
bin, the rank or the order of computation, and each pass draws other masks.
"""

from abc import ABC, abstractmethod
from functools import lru_cache
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from data.alphabet import IS_TARGET, MASK, STANDARD_IDS
from data.batches.settings import MASKS, MaskSettings
from data.order.plan import Bin
from zymogen import keyed_random
from zymogen.compiled import compiled
from zymogen.settings import extension
from zymogen.settings.options import NoOptions, checked_options
from zymogen.settings.section import Section

Corrupted = tuple[NDArray[np.uint8], NDArray[np.int32]]
"""Inputs, (slots,) uint8, and the slots of the targets, (targets,) int32, ascending."""
_NAME = "data.mask.name"


class MaskPolicy(ABC):
    """Which residues are targets, and what the model sees in their place: the base class of ours and of the user's.

    It has no state. Data workers get a copy, pickled by the name of its class.

    Args:
        settings: the recipe's section `data.mask`.
        options: `data.mask.options`, as `Options`.
    """

    Options: ClassVar[type[Section]] = NoOptions
    """A dataclass of settings of its own, with `section = "data.mask.options"`."""
    is_independent: ClassVar[bool] = False
    """Whether each residue is selected independently of all others."""

    def __init__(self, settings: MaskSettings, options: Section | None = None) -> None:
        self.settings, self.options = settings, options or NoOptions()

    @abstractmethod
    def corrupt(self, tokens: NDArray[np.uint8], bin_: Bin, seed: int) -> Corrupted:
        """Select targets and corrupt the input at them; a function of the arguments alone.

        Args:
            tokens: (slots,) true token ids of the documents, concatenated; only residues of `alphabet.IS_TARGET` may be
                selected.
            bin_: the bin of these tokens.
            seed: seed of the run.
        """


class BertMask(MaskPolicy):
    """Each residue is selected with `select_prob`; of those, `mask_prob` are hidden and `random_prob` replaced."""

    is_independent = True

    def corrupt(self, tokens: NDArray[np.uint8], bin_: Bin, seed: int) -> Corrupted:
        """Select targets and corrupt the input at them."""
        first = int(bin_.epochs[0])
        if (bin_.epochs == first).all():
            keys = np.repeat(_keys(seed, first), len(bin_.epochs), axis=0)
        else:
            keys = np.concatenate([_keys(seed, epoch) for epoch in bin_.epochs.tolist()])
        mask = self.settings
        limits = mask.select_prob, mask.mask_prob, mask.mask_prob + mask.random_prob
        inputs, targets = np.empty_like(tokens), np.empty(len(tokens), np.int32)
        documents = bin_.samples, bin_.starts, bin_.lengths
        kernel = compiled(_corrupt, _hashed, keyed_random.mixed)
        count = kernel(tokens, keys, *documents, *_thresholds(*limits), inputs, targets)
        return inputs, targets[:count]


_OWN: dict[str, type[MaskPolicy]] = {"bert": BertMask}
assert set(_OWN) == set(MASKS)


def mask_policy(settings: MaskSettings) -> MaskPolicy:
    """Return the policy of a recipe, its options checked.

    Raises:
        ValueError: the class cannot be imported or is no `MaskPolicy`, an option is not allowed, or it does not corrupt
            as `MaskPolicy.corrupt` says.
    """
    kind = extension.load(_NAME, settings.name, MaskPolicy, _OWN)  # type: ignore[type-abstract]
    policy = kind(settings, checked_options("data.mask", kind, settings))
    if extension.is_external(settings.name):
        _require_usable(policy)
    return policy


def _require_usable(policy: MaskPolicy) -> None:
    """Refuse a policy whose result no batch can hold, or that draws others when it is called again."""
    tokens, lengths = np.tile(STANDARD_IDS, 10), np.array([120, 80])
    bin_ = Bin(np.arange(2), np.zeros(2, np.int64), np.zeros(2, np.int64), lengths)
    (inputs, targets), again = policy.corrupt(tokens.copy(), bin_, 0), policy.corrupt(tokens.copy(), bin_, 0)
    slots = np.asarray(targets)
    wrong = {
        "inputs must be uint8, one for each token": inputs.dtype == np.uint8 and inputs.shape == tokens.shape,
        "targets must be int32 and rise": slots.dtype == np.int32 and slots.ndim == 1 and (np.diff(slots) > 0).all(),
        "it must draw by its arguments alone (zymogen.keyed_random)": np.array_equal(inputs, again[0])
        and np.array_equal(slots, again[1]),
    }
    for said, holds in wrong.items():
        if not holds:
            raise ValueError(f"{_NAME} is {policy.settings.name!r}, whose corrupt() does not fit: {said}")


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
