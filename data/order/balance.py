"""Load balancing: which rank takes which bin of a step, so that all finish at about the same time.

In: the bins' costs. Out: bins by rank. Kept: nothing; every rank computes the same.

All bins have the same number of slots, so they differ only in attention, whose cost is the sum of the squared lengths
of a bin's documents. Ranks get equally many bins (some get one more if the bins cannot be divided evenly). Among these,
bins are dealt by longest processing time first: the costliest bin goes to the rank with the least so far.
"""

from collections.abc import Sequence
from heapq import heappop, heappush

import numpy as np
from numpy.typing import NDArray


def attention_cost(lengths: NDArray[np.int64]) -> int:
    """Sum of squared lengths, in tokens squared."""
    return int((lengths * lengths).sum())


def balance(costs: Sequence[int], world_size: int) -> list[list[int]]:
    """Bins of each rank, ascending.

    Args:
        costs: cost of each bin; at least `world_size` of them.
        world_size: number of ranks.
    """
    fewest, more = divmod(len(costs), world_size)
    dealt: list[list[int]] = [[] for _ in range(world_size)]
    by_load = [(0, rank) for rank in range(world_size)]  # a heap: least load first, then lowest rank
    for bin_ in sorted(range(len(costs)), key=lambda b: (-costs[b], b)):
        load, rank = heappop(by_load)
        # A rank is full when it has `fewest` bins, or one more while `more` ranks may still get one more.
        while len(dealt[rank]) == fewest + (more > 0):
            load, rank = heappop(by_load)
        dealt[rank].append(bin_)
        if len(dealt[rank]) == fewest + 1:
            more -= 1
        else:
            heappush(by_load, (load + costs[bin_], rank))
    return [sorted(bins) for bins in dealt]


def imbalance(costs: Sequence[int], dealt: Sequence[Sequence[int]]) -> float:
    """Cost of the slowest rank divided by the mean; 1 is perfect."""
    loads = [sum(costs[b] for b in bins) for bins in dealt]
    return max(loads) * len(loads) / max(1, sum(loads))
