"""Work that ranks share: who computes what, and how every rank gets all results.

In: tensors that every rank has. Out: what is computed of each, the same bits on every rank. Kept: nothing.

Who computes what follows from the costs and the number of ranks alone, so nobody has to be told; one all-gather hands
the results out.
"""

import heapq
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

# torch 2.13 renames it, and warns at each call by the old name.
ALL_GATHER: Callable[..., Any] = getattr(dist, "all_gather_single", dist.all_gather_into_tensor)


@lru_cache(maxsize=64)
def balance(costs: tuple[int, ...], ranks: int) -> tuple[int, ...]:
    """The rank of each piece of work: the largest piece first, each to the rank that has the least so far.

    The busiest rank has at most 4/3 of the best possible (Graham 1969, doi:10.1137/0117039).
    """
    loads, owners = [(0, rank) for rank in range(ranks)], [0] * len(costs)
    for piece in sorted(range(len(costs)), key=lambda piece: -costs[piece]):
        load, owner = heapq.heappop(loads)
        owners[piece] = owner
        heapq.heappush(loads, (load + costs[piece], owner))
    return tuple(owners)


def compute_shared(
    stacks: Sequence[Tensor],
    compute: Callable[[Tensor], Tensor],
    cost: Callable[[int, int], int],
    dtype: torch.dtype,
) -> list[Tensor]:
    """`compute` of each stack ``(n, A, B)``, whose matrices are balanced over all ranks; collective.

    Args:
        stacks: the same on every rank.
        compute: matrices ``(n, A, B)``, n > 0 -> results of the same shape, each of which depends on its own matrix.
        cost: of computing one of A rows and B columns, in any unit.
        dtype: of the results.
    """
    ranks = dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1
    if ranks == 1:
        return [compute(stack) for stack in stacks]
    pieces = [(number, place) for number, stack in enumerate(stacks) for place in range(len(stack))]
    owners = balance(tuple(cost(*stacks[number].shape[1:]) for number, _ in pieces), ranks)
    of_ranks = [[piece for piece, owner in zip(pieces, owners, strict=True) if owner == rank] for rank in range(ranks)]
    most = max(sum(stacks[number][0].numel() for number, _ in own) for own in of_ranks)
    sent = torch.zeros(most, dtype=dtype, device=stacks[0].device)
    first = 0
    for number, stack in enumerate(stacks):
        own = [stack[place] for of, place in of_ranks[dist.get_rank()] if of == number]
        if own:
            found = compute(torch.stack(own)).flatten()
            sent[first : first + len(found)] = found
            first += len(found)
    received = sent.new_empty(ranks * most)
    ALL_GATHER(received, sent)
    results = [torch.empty_like(stack, dtype=dtype) for stack in stacks]
    for of_rank, row in zip(of_ranks, received.view(ranks, most), strict=True):
        first = 0
        for number, place in of_rank:
            result = results[number][place]
            result.copy_(row[first : first + result.numel()].view_as(result))
            first += result.numel()
    return results
