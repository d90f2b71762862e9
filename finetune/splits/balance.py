"""Balancing groups over sides: groups stay whole, sides get the requested sizes, and a seed draws the order.

In: sizes and keys of groups, shares of sides. Out: the side of each group. Kept: nothing. NumPy alone.
"""

import heapq

import numpy as np
from numpy.typing import NDArray

from data.order.weighted_epochs import apportion
from zymogen import keyed_random

_PURPOSE = 0x73706C6974
"""Keeps these draws apart from all other uses of a seed."""


def balance_groups(
    group: NDArray[np.int64], digests: NDArray[np.uint64], shares: tuple[float, ...], seed: int
) -> NDArray[np.int64]:
    """The side of each group.

    Groups come in falling order of size, those of one size in an order that the seed draws. Each is dealt to the side
    that has received the smallest part of its share, among the sides with room for the whole group; if none has room,
    to the side that lacks most. So large groups are not all in training, and with groups of one record the sizes are
    exact. The draw depends on the records' contents, not on their order.

    Args:
        group: (N,) group of each record, from 0.
        digests: (N,) digest of each record.
        shares: share of each side, adding up to 1; a side whose share is 0 receives nothing.
        seed: integer, at least 0.

    Returns:
        (groups,) index of the side.
    """
    sizes = np.bincount(group)
    lowest = np.full(len(sizes), np.iinfo(np.uint64).max, np.uint64)
    np.minimum.at(lowest, group, digests)
    order = np.lexsort((lowest, keyed_random.hashes(keyed_random.key(_PURPOSE, seed), lowest), -sizes))
    whole = iter(apportion(len(group), [share for share in shares if share]))
    targets = [next(whole) if share else 0 for share in shares]
    sides = np.zeros(len(sizes), np.int64)
    heap = [(0.0, side) for side, target in enumerate(targets) if target]
    filled = [0] * len(shares)
    for one, size in zip(order.tolist(), sizes[order].tolist(), strict=True):
        passed = []
        while heap and filled[heap[0][1]] + size > targets[heap[0][1]]:
            passed.append(heapq.heappop(heap))
        if heap:
            _, side = heapq.heappop(heap)
        else:
            side = max((side for _, side in passed), key=lambda s: (targets[s] - filled[s], -s))
            passed = [entry for entry in passed if entry[1] != side]
        filled[side] += size
        sides[one] = side
        for entry in (*passed, (filled[side] / targets[side], side)):
            heapq.heappush(heap, entry)
    return sides
