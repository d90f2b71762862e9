"""Masking: rates within binomial error, keyed by residue and pass alone, and only residues are targets."""

from itertools import product

import numpy as np
import pytest

from data.alphabet import CLS, EOS, IS_TARGET, MASK, STANDARD_IDS, TOKENS, UNK
from data.batch import IGNORED
from data.masking import corrupt
from data.settings import MaskSettings

RATES = MaskSettings()
NUM = 200_000
TOKENS_IN = STANDARD_IDS[np.random.default_rng(0).integers(0, 20, NUM)]
SAMPLES = np.repeat(np.arange(NUM // 200), 200)
RESIDUES = np.tile(np.arange(200), NUM // 200)


def within(successes: int, trials: int, probability: float) -> bool:
    """Whether a count lies within 4 binomial standard deviations."""
    return abs(successes - trials * probability) <= 4 * np.sqrt(trials * probability * (1 - probability))


def test_rates() -> None:
    inputs, labels = corrupt(TOKENS_IN, SAMPLES, RESIDUES, RATES, seed=0, pass_index=0)
    selected = labels != IGNORED
    chosen = int(selected.sum())
    assert np.array_equal(labels[selected], TOKENS_IN[selected])
    assert np.array_equal(inputs[~selected], TOKENS_IN[~selected])
    assert within(chosen, NUM, 0.15)
    masked = inputs[selected] == MASK
    assert within(int(masked.sum()), chosen, 0.8)
    shown = inputs[selected] == TOKENS_IN[selected]
    assert within(int(shown.sum()), chosen, 0.1 + 0.1 / 20)  # a random residue may be the true one
    replaced = inputs[selected][~masked & ~shown]
    counts = np.bincount(replaced, minlength=len(TOKENS))[STANDARD_IDS]
    assert counts.sum() == len(replaced)
    assert ((counts - counts.mean()) ** 2 / counts.mean()).sum() < 43.8  # 99.9 % quantile, 19 degrees of freedom


def test_mask_all_hides_the_same_targets() -> None:
    everything = MaskSettings(mask_prob=1.0, random_prob=0.0)
    inputs, labels = corrupt(TOKENS_IN, SAMPLES, RESIDUES, everything, seed=0, pass_index=0)
    _, trained = corrupt(TOKENS_IN, SAMPLES, RESIDUES, RATES, seed=0, pass_index=0)
    assert np.array_equal(labels, trained)
    assert (inputs[labels != IGNORED] == MASK).all()


def test_a_residue_keeps_its_fate_wherever_it_stands() -> None:
    inputs, labels = corrupt(TOKENS_IN, SAMPLES, RESIDUES, RATES, seed=0, pass_index=0)
    shuffled = np.random.default_rng(1).permutation(NUM)[:5000]
    part = corrupt(TOKENS_IN[shuffled], SAMPLES[shuffled], RESIDUES[shuffled], RATES, seed=0, pass_index=0)
    assert np.array_equal(part[0], inputs[shuffled])
    assert np.array_equal(part[1], labels[shuffled])


@pytest.mark.parametrize(("seed", "pass_index", "shift"), [(1, 0, 0), (0, 1, 0), (0, 0, 1)])
def test_controls_seed_pass_and_sample_mask_anew(seed: int, pass_index: int, shift: int) -> None:
    _, first = corrupt(TOKENS_IN, SAMPLES, RESIDUES, RATES, seed=0, pass_index=0)
    _, second = corrupt(TOKENS_IN, SAMPLES + shift, RESIDUES, RATES, seed=seed, pass_index=pass_index)
    both = int(((first != IGNORED) & (second != IGNORED)).sum())
    assert within(both, NUM, 0.15**2)  # independent selections meet by chance


def test_only_known_residues_are_targets() -> None:
    tokens = np.arange(len(TOKENS), dtype=np.uint8)
    hidden = MaskSettings(select_prob=1.0, mask_prob=1.0, random_prob=0.0)
    _, labels = corrupt(tokens, tokens.astype(np.int64), tokens.astype(np.int64), hidden, 0, 0)
    targets = {TOKENS[i] for i in np.flatnonzero(labels != IGNORED)}
    assert targets == set("ACDEFGHIKLMNPQRSTVWYUO")
    assert not IS_TARGET[[CLS, EOS, UNK, MASK]].any()


def test_rates_of_zero_and_one() -> None:
    for mask_prob, random_prob in product((0.0, 1.0), (0.0,)):
        rates = MaskSettings(select_prob=1.0, mask_prob=mask_prob, random_prob=random_prob)
        inputs, _ = corrupt(TOKENS_IN, SAMPLES, RESIDUES, rates, 0, 0)
        assert (inputs == (MASK if mask_prob else TOKENS_IN)).all()
