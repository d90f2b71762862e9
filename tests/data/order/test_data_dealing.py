"""Dealing: every bin to one rank, equally many each, and equally much attention."""

from collections.abc import Sequence

import numpy as np
import pytest

from data.order.balance import attention_cost, balance, imbalance
from data.order.packing import pack


@pytest.mark.parametrize(("bins", "world_size"), [(1, 1), (7, 1), (7, 2), (7, 3), (7, 7), (128, 24), (16, 8)])
def test_every_bin_to_one_rank_and_counts_differ_by_one(bins: int, world_size: int) -> None:
    costs = np.random.default_rng(bins).integers(1, 1000, bins).tolist()
    dealt = balance(costs, world_size)
    assert sorted(b for rank in dealt for b in rank) == list(range(bins))
    assert all(rank == sorted(rank) for rank in dealt)
    counts = [len(rank) for rank in dealt]
    assert max(counts) - min(counts) <= 1
    assert sum(c == max(counts) for c in counts) == (bins % world_size or world_size)


def by_looking_at_every_rank(costs: Sequence[int], world_size: int) -> list[list[int]]:
    """The rule word for word: each bin, costliest first, to the rank that has least of those that may take it."""
    fewest, more = divmod(len(costs), world_size)
    dealt: list[list[int]] = [[] for _ in range(world_size)]
    for bin_ in sorted(range(len(costs)), key=lambda b: (-costs[b], b)):
        may = [r for r in range(world_size) if len(dealt[r]) < fewest + (more > 0)]
        rank = min(may, key=lambda r: (sum(costs[b] for b in dealt[r]), r))
        dealt[rank].append(bin_)
        more -= len(dealt[rank]) > fewest
    return [sorted(bins) for bins in dealt]


@pytest.mark.parametrize("different", [1, 2, 5, 10**6], ids="of {} costs".format)
def test_the_heap_deals_as_the_rule_says(different: int) -> None:
    random = np.random.default_rng(different)
    for _ in range(300):
        world_size = int(random.integers(1, 12))
        costs = random.integers(0, different, int(random.integers(world_size, 50))).tolist()
        assert balance(costs, world_size) == by_looking_at_every_rank(costs, world_size), (costs, world_size)


def test_a_rank_is_not_looked_at_for_each_bin() -> None:
    """A thousand ranks were: 127 ms of every step."""

    class Counted(int):
        compared = 0

        def __lt__(self, other: int) -> bool:
            Counted.compared += 1
            return int(self) < int(other)

        def __add__(self, other: int) -> "Counted":
            return Counted(int(self) + int(other))

        __radd__ = __add__

    costs = [Counted(cost) for cost in np.random.default_rng(0).integers(1, 10**6, 4096).tolist()]
    dealt = balance(costs, 1024)
    assert [len(bins) for bins in dealt] == [4] * 1024
    assert 0 < Counted.compared < 40 * len(costs)  # some 3 log2(1024); looking at every rank is 1024


def test_longest_first_by_hand() -> None:
    # 9 -> rank 0, 7 -> rank 1, 6 -> rank 1 (7 < 9), 5 -> rank 0: 14 against 13.
    dealt = balance([5, 9, 6, 7], 2)
    assert dealt == [[0, 1], [2, 3]]
    assert imbalance([5, 9, 6, 7], dealt) == 14 / 13.5


def test_equal_costs_are_dealt_the_same_way_everywhere() -> None:
    assert balance([3] * 6, 3) == [[0, 3], [1, 4], [2, 5]]


def test_cost_is_the_sum_of_squares() -> None:
    assert attention_cost(np.array([3, 4])) == 25
    assert attention_cost(np.full(2, 1_000_000)) == 2 * 10**12  # beyond 32 bits


@pytest.mark.parametrize(("bins_per_step", "bound"), [(128, 1.01), (64, 1.02), (16, 1.05)])
def test_eight_ranks_finish_together(bins_per_step: int, bound: float) -> None:
    lengths = np.minimum(np.random.default_rng(0).lognormal(5.3, 0.75, 100_000).astype(np.int64) + 3, 1024)
    costs = [attention_cost(lengths[members]) for members in pack(lengths, 16_384, 2048).bins()]
    found, by_stride = [], []
    for start in range(0, len(costs) - bins_per_step, bins_per_step):
        step = costs[start : start + bins_per_step]
        found.append(imbalance(step, balance(step, 8)))
        by_stride.append(imbalance(step, [range(r, len(step), 8) for r in range(8)]))
    assert np.mean(found) <= bound
    assert np.mean(by_stride) - 1 > 3 * (np.mean(found) - 1)  # what dealing by rank number costs
