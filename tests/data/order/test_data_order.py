"""Draws and order: reference values, bijection, and no trace of one key in another."""

import numpy as np
import pytest

from data.order.sampler import Permutation
from zymogen import keyed_random


def test_hashes_are_splitmix64() -> None:
    # First outputs of the reference implementation from state 1234567.
    expected = [6457827717110365317, 3203168211198807973, 9817491932198370423, 4593380528125082431]
    assert keyed_random.hashes(1234567, np.arange(4)).tolist() == expected


def test_keys_depend_on_every_part_and_its_place() -> None:
    keys = [
        keyed_random.key(1, 2, 3),
        keyed_random.key(1, 3, 2),
        keyed_random.key(1, 2),
        keyed_random.key(1, 2, 3, 0),
        keyed_random.key(-1, 2, 3),
    ]
    assert len(set(keys)) == 5
    assert keyed_random.key(2**64 + 1, 2, 3) == keys[0]


def test_thresholds_are_exact_at_the_ends() -> None:
    values = np.array([0, 2**64 - 1], np.uint64)
    assert keyed_random.below(values, 0.0).tolist() == [False, False]
    assert keyed_random.below(values, 1.0).tolist() == [True, True]
    assert keyed_random.below(values, 0.5).tolist() == [True, False]


def test_integers_are_uniform() -> None:
    counts = np.bincount(keyed_random.integers(keyed_random.hashes(5, np.arange(60_000)), 6), minlength=6)
    chi2 = ((counts - 10_000) ** 2 / 10_000).sum()
    assert chi2 < 20.5  # 99.9 % quantile with 5 degrees of freedom


@pytest.mark.parametrize("size", [1, 2, 3, 5, 64, 65, 1000, 99_991])
def test_every_item_once(size: int) -> None:
    items = Permutation(size, keyed_random.key(0, keyed_random.ORDER, 0))(np.arange(size))
    assert np.array_equal(np.sort(items), np.arange(size))


def test_one_position_needs_no_other() -> None:
    whole = Permutation(1000, 7)(np.arange(1000))
    assert [int(Permutation(1000, 7)(np.array([i]))[0]) for i in (0, 13, 999)] == whole[[0, 13, 999]].tolist()


def test_keys_give_unrelated_orders() -> None:
    orders = [Permutation(10_000, keyed_random.key(0, keyed_random.ORDER, p))(np.arange(10_000)) for p in range(3)]
    for first, second in ((0, 1), (1, 2)):
        correlation = np.corrcoef(orders[first], orders[second])[0, 1]
        assert abs(correlation) < 0.04  # 4 standard errors
    assert abs(np.corrcoef(orders[0][:-1], orders[0][1:])[0, 1]) < 0.04
