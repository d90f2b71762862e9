"""Shares: how often each group and each record is drawn, and that windows are a function of their numbers alone."""

from collections import Counter

import numpy as np
import pytest

from data.order.plan import Cursor, Plan
from data.order.weighted_epochs import WeightedEpochs, apportion
from data.settings import DataSettings

GROUPS = [np.arange(100, 130), np.array([7]), np.arange(500, 900)]
DRAWS = [75, 4, 121]
"""More than the records, far more, and fewer."""


def shares(window: int = 64, seed: int = 3) -> WeightedEpochs:
    return WeightedEpochs(GROUPS, DRAWS, seed, window)


def passes(sampler: WeightedEpochs, number: int) -> list[int]:
    found, window = list[int](), 0
    while (items := sampler.window(number, window)) is not None:
        found += items.samples.tolist()
        window += 1
    assert window == -(-sum(DRAWS) // sampler.window_sequences)
    return found


def test_each_pass_draws_from_each_group_its_number() -> None:
    for number in range(3):
        drawn = Counter(passes(shares(), number))
        assert [sum(drawn[record] for record in group.tolist()) for group in GROUPS] == DRAWS
        assert drawn.total() == sum(DRAWS)


def test_records_of_a_group_are_drawn_equally_often_over_all_passes() -> None:
    """121 draws of 400 records go through all of them in four passes, and draw none twice before that."""
    drawn = Counter[int]()
    for number in range(4):
        drawn.update(passes(shares(), number))
        for group, draws in zip(GROUPS, DRAWS, strict=True):
            rounds, more = divmod((number + 1) * draws, len(group))
            counts = Counter(drawn[record] for record in group.tolist())
            assert counts[rounds + 1] == more
            assert counts[rounds] == len(group) - more
        assert shares().distinct(number + 1) == len(drawn)


def test_the_order_does_not_depend_on_windows_and_differs_by_pass_and_seed() -> None:
    whole = passes(shares(), 1)
    assert passes(shares(window=7), 1) == whole
    assert passes(shares(window=1000), 1) == whole
    assert passes(shares(), 2) != whole
    assert passes(shares(seed=4), 1) != whole


def test_groups_are_mixed_in_every_window() -> None:
    """Of 121 of 200 draws, 100 places have 60.5 on average, with a standard deviation of 3.5 (hypergeometric)."""
    first = shares(window=100).window(0, 0)
    assert first is not None
    assert 60.5 - 4 * 3.5 < np.count_nonzero(first.samples >= 500) < 60.5 + 4 * 3.5
    assert shares(window=100).share_of_first_window() == 0.5
    assert not shares(window=200).is_below_a_window
    assert shares(window=201).is_below_a_window


def test_a_plan_continues_where_it_was_left() -> None:
    settings = DataSettings(sources=("x.fasta",), crop_tokens=32, bin_tokens=64, window_sequences=64)
    plan = Plan(shares(), lambda samples: samples % 29 + 1, settings, 3)
    bins = plan.bins(Cursor())
    ahead = [next(bins) for _ in range(400)]
    assert ahead[-1][1].epoch > 1
    for at in (0, 37, 150, 301):
        again = plan.bins(ahead[at][1])
        for wanted, _ in ahead[at + 1 : at + 40]:
            bin_, _ = next(again)
            assert bin_.samples.tobytes() == wanted.samples.tobytes()
            assert bin_.epochs.tobytes() == wanted.epochs.tobytes()


def test_shares_are_rounded_to_whole_draws() -> None:
    assert apportion(10, [1, 1, 1]) == [4, 3, 3]
    assert apportion(100, [3.0, 1.0]) == [75, 25]
    assert apportion(7, [5.0, 2.0, 0.0001]) == [5, 2, 1]  # none is left without a draw
    assert apportion(1000, [n**0.5 for n in (10_000, 100)]) == [909, 91]
    assert apportion(0, []) == []


def test_a_group_without_records_or_draws_is_refused() -> None:
    with pytest.raises(ValueError, match=r"^\[1, 0\] draws of groups of \[1, 30\] records"):
        WeightedEpochs([GROUPS[1], GROUPS[0]], [1, 0], 0, 8)
    with pytest.raises(ValueError, match="each group needs a record and a draw"):
        WeightedEpochs([np.zeros(0, np.int64)], [1], 0, 8)


def test_each_round_of_a_group_has_an_order_of_its_own() -> None:
    """Ten of forty a pass: pass 0 begins the first round, pass 4 the second one, and each seed begins elsewhere."""
    few = [WeightedEpochs([np.arange(40)], [10], seed, 8) for seed in (3, 4)]
    begun = []
    for sampler, number in ((few[0], 0), (few[0], 4), (few[1], 0)):
        windows = [items.samples for window in (0, 1) if (items := sampler.window(number, window)) is not None]
        begun.append(frozenset(np.concatenate(windows).tolist()))
    assert [len(each) for each in begun] == [10, 10, 10]
    assert len(set(begun)) == 3
