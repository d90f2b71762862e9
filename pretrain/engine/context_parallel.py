"""Context parallelism: which ranks share every batch, each computing a share of its slots.

In: how many ranks share a batch. Out: the group of this rank. Kept: torch's process group.

Ranks of a group are neighbours, so that a group lies inside a node wherever its size divides the ranks of one. They
count like data-parallel ranks in everything else: gradients and loss sums are added up over the whole world.
"""

from dataclasses import dataclass
from datetime import timedelta

import torch.distributed as dist

from pretrain.model.context import ContextShard, choose_exchange
from pretrain.model.encoder import Encoder
from pretrain.model.settings import ExchangeRequest


@dataclass(frozen=True, slots=True)
class ContextGroup:
    """This rank's place among those that share its batches; by default it shares them with none."""

    rank: int = 0
    size: int = 1
    group: "dist.ProcessGroup | None" = None


def context_group(size: int, rank: int, world_size: int, timeout: timedelta) -> ContextGroup:
    """The group of this rank; collective, over the whole world.

    Raises:
        ValueError: the world cannot be cut into groups of this size.
    """
    require_divides(size, world_size)
    if size == 1:
        return ContextGroup()
    firsts = range(0, world_size, size)
    # A group does not inherit the world's timeout: torch would give it 10 minutes under NCCL.
    groups = [dist.new_group(list(range(first, first + size)), timeout=timeout) for first in firsts]
    return ContextGroup(rank % size, size, groups[rank // size])


def require_divides(size: int, world_size: int) -> None:
    """Raise ValueError if `world_size` processes cannot be cut into groups of `size`."""
    if world_size % size:
        raise ValueError(
            f"parallel.context is {size}, and {world_size} process(es) train together, which is no multiple of it; "
            f"start {max(1, world_size // size) * size} with --num_processes, or set parallel.context to a divisor of "
            f"{world_size}"
        )


def share_context(encoder: Encoder, group: ContextGroup, request: ExchangeRequest) -> list[str]:
    """Let `encoder` compute its rank's share of every batch.

    Returns:
        Lines for the start of a run.

    Raises:
        ValueError: the exchange that was asked for by name cannot be had with this many heads.
    """
    if group.size == 1:
        return []
    exchange, lines = choose_exchange(request, encoder.shape.heads, group.size)
    assert group.group is not None
    encoder.context = ContextShard(group.rank, group.size, exchange, group.group)
    return [f"context: {group.size} ranks share every batch, by {exchange}", *lines]
