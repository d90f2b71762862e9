"""Dealing: which rank orthogonalises which of Muon's maps, and how every rank gets all results.

In: maps that every rank has. Out: the orthogonal factor of each, the same bits on every rank. Kept: nothing.

A map's update does not depend on the others, so each rank computes a share, and one all-gather for each round hands the
results out. Who computes what follows from the sizes and the number of ranks alone, so nobody has to be told.
"""

import heapq
from collections.abc import Callable, Sequence
from functools import lru_cache

import torch
import torch.distributed as dist
from torch import Tensor

from pretrain.model.attention.exchange import ALL_GATHER


def newton_schulz_cost(rows: int, columns: int) -> int:
    """Multiplications of one step of the iteration on a map: ``X Xᵀ``, its square, and its product with X."""
    short, long = min(rows, columns), max(rows, columns)
    return 2 * short * short * long + short**3


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


def compute_shared(stacks: Sequence[Tensor], compute: Callable[[Tensor], Tensor], dtype: torch.dtype) -> list[Tensor]:
    """`compute` of each stack ``(n, A, B)``, whose maps are dealt over all ranks; collective.

    Args:
        stacks: the same on every rank.
        compute: maps ``(n, A, B)``, n > 0 -> results of the same shape.
        dtype: of the results.
    """
    ranks = dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1
    if ranks == 1:
        return [compute(stack) for stack in stacks]
    pieces = [(number, place) for number, stack in enumerate(stacks) for place in range(len(stack))]
    owners = balance(tuple(newton_schulz_cost(*stacks[number].shape[1:]) for number, _ in pieces), ranks)
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
