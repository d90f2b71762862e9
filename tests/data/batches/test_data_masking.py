"""Masking: rates within binomial error, keyed by residue and pass alone, and only residues are targets."""

from itertools import product

import numpy as np
import pytest

from data.alphabet import CLS, EOS, IS_TARGET, MASK, STANDARD_IDS, TOKENS, UNK
from data.batches.masking import BertMask
from data.batches.settings import MaskSettings
from data.order.plan import Bin
from support.reference_kernels import corrupted

RATES = MaskSettings()
NUM = 200_000
TOKENS_IN = STANDARD_IDS[np.random.default_rng(0).integers(0, 20, NUM)]


def documents(shift: int = 0, epoch: int = 0, start: int = 0) -> Bin:
    """A thousand documents of 200 tokens."""
    samples = np.arange(NUM // 200) + shift
    ones = np.ones_like(samples)
    return Bin(samples, epoch * ones, start * ones, 200 * ones)


def within(successes: int, trials: int, probability: float) -> bool:
    """Whether a count lies within 4 binomial standard deviations."""
    return abs(successes - trials * probability) <= 4 * np.sqrt(trials * probability * (1 - probability))


@pytest.mark.parametrize(
    "rates",
    [
        RATES,
        *(
            MaskSettings(select_prob=select, mask_prob=mask, random_prob=rest)
            for select, mask, rest in product((1e-15, 0.4, 1.0), (0.0, 0.3, 1.0), (0.0, 0.7, 1.0))
            if mask + rest <= 1
        ),
    ],
)
def test_the_kernel_is_the_arrays(rates: MaskSettings) -> None:
    rng = np.random.default_rng(1)
    tokens = rng.integers(0, len(TOKENS), 40_000).astype(np.uint8)
    for start in (0, 1, 700):
        samples, passes = rng.integers(0, 1 << 60, 200), rng.integers(0, 3, 200)
        starts = start * rng.integers(0, 2, 200)
        lengths = np.diff(
            np.concatenate([[0], np.sort(rng.choice(np.arange(1, 40_000), 199, replace=False)), [40_000]])
        )
        bin_ = Bin(samples, passes, starts, lengths)
        inputs, targets = BertMask(rates).corrupt(tokens, bin_, seed=5)
        expected = corrupted(tokens, bin_, rates, seed=5)
        assert np.array_equal(inputs, expected[0])
        assert np.array_equal(targets, expected[1])
        assert targets.dtype == np.int32


def test_rates() -> None:
    inputs, targets = BertMask(RATES).corrupt(TOKENS_IN, documents(), seed=0)
    chosen = len(targets)
    untouched = np.delete(np.arange(NUM), targets)
    assert (np.diff(targets) > 0).all()
    assert np.array_equal(inputs[untouched], TOKENS_IN[untouched])
    assert within(chosen, NUM, 0.15)
    masked = inputs[targets] == MASK
    assert within(int(masked.sum()), chosen, 0.8)
    shown = inputs[targets] == TOKENS_IN[targets]
    assert within(int(shown.sum()), chosen, 0.1 + 0.1 / 20)  # a random residue may be the true one
    replaced = inputs[targets][~masked & ~shown]
    counts = np.bincount(replaced, minlength=len(TOKENS))[STANDARD_IDS]
    assert counts.sum() == len(replaced)
    assert ((counts - counts.mean()) ** 2 / counts.mean()).sum() < 43.8  # 99.9 % quantile, 19 degrees of freedom


def test_mask_all_hides_the_same_targets() -> None:
    everything = MaskSettings(mask_prob=1.0, random_prob=0.0)
    inputs, targets = BertMask(everything).corrupt(TOKENS_IN, documents(), seed=0)
    _, trained = BertMask(RATES).corrupt(TOKENS_IN, documents(), seed=0)
    assert np.array_equal(targets, trained)
    assert (inputs[targets] == MASK).all()


def test_a_residue_keeps_its_fate_in_every_crop() -> None:
    """Residue 49 stands in slot 50 of the whole protein, and in slot 0 of a crop that starts there."""
    whole = BertMask(RATES).corrupt(TOKENS_IN, documents(), seed=0)
    crops = documents(start=50)
    crops = Bin(crops.samples[::-1], crops.epochs, crops.starts, np.full(1000, 150))
    slots = np.concatenate([np.arange(200 * s + 50, 200 * s + 200) for s in crops.samples.tolist()])
    inputs, targets = BertMask(RATES).corrupt(TOKENS_IN[slots], crops, seed=0)
    assert np.array_equal(inputs, whole[0][slots])
    assert np.array_equal(np.sort(slots[targets]), whole[1][np.isin(whole[1], slots)])


def test_a_pass_in_a_mixture_masks_as_it_does_alone() -> None:
    passes = np.arange(1000) % 3
    mixed = Bin(np.arange(1000), passes, np.zeros(1000, np.int64), np.full(1000, 200))
    inputs, _ = BertMask(RATES).corrupt(TOKENS_IN, mixed, seed=0)
    alone = [BertMask(RATES).corrupt(TOKENS_IN, documents(epoch=p), seed=0)[0] for p in range(3)]
    expected = np.choose(np.repeat(passes, 200), alone)
    assert np.array_equal(inputs, expected)


@pytest.mark.parametrize(("seed", "epoch", "shift"), [(1, 0, 0), (0, 1, 0), (0, 0, 1)])
def test_controls_seed_pass_and_sample_mask_anew(seed: int, epoch: int, shift: int) -> None:
    _, first = BertMask(RATES).corrupt(TOKENS_IN, documents(), seed=0)
    _, second = BertMask(RATES).corrupt(TOKENS_IN, documents(shift=shift, epoch=epoch), seed=seed)
    assert within(len(np.intersect1d(first, second)), NUM, 0.15**2)  # independent selections meet by chance


def test_only_known_residues_are_targets() -> None:
    tokens = np.arange(len(TOKENS), dtype=np.uint8)
    hidden = MaskSettings(select_prob=1.0, mask_prob=1.0, random_prob=0.0)
    everything = Bin(np.array([0]), np.array([0]), np.array([0]), np.array([len(tokens)]))
    inputs, targets = BertMask(hidden).corrupt(tokens, everything, 0)
    assert {TOKENS[i] for i in targets} == set("ACDEFGHIKLMNPQRSTVWYUO")
    assert (inputs[targets] == MASK).all()
    assert not IS_TARGET[[CLS, EOS, UNK, MASK]].any()


def test_rates_of_zero_and_one() -> None:
    for mask_prob, random_prob in product((0.0, 1.0), (0.0, 1.0)):
        if mask_prob + random_prob > 1:
            continue
        rates = MaskSettings(select_prob=1.0, mask_prob=mask_prob, random_prob=random_prob)
        inputs, targets = BertMask(rates).corrupt(TOKENS_IN, documents(), 0)
        assert len(targets) == NUM
        if random_prob:
            assert within(int((inputs == TOKENS_IN).sum()), NUM, 1 / 20)
            assert np.isin(inputs, STANDARD_IDS).all()
        else:
            assert (inputs == (MASK if mask_prob else TOKENS_IN)).all()
