"""Spans: a tensor that ranks hold in parts, and which part of it each of them stores.

In: the range `[start, stop)` of a flattened tensor that each rank holds. Out: what this rank writes to a checkpoint, or
its part, filled from a file or a draw. Kept: nothing.
"""

from collections.abc import Mapping
from typing import NamedTuple

import torch.distributed as dist
from torch import Tensor

from zymogen.trainer import collectives

Span = tuple[int, int]
"""Range `[start, stop)` of a flattened tensor."""


class StoredPiece(NamedTuple):
    """The part of a tensor that this rank stores."""

    name: str
    """The parameter's."""
    key: str
    """"param", or the key of a moment."""
    start: int
    stop: int
    live: Tensor
    """Elements `[start, stop)` of the flattened tensor: staged, or as this rank holds them, until the next step."""


def even_spans(size: int, ranks: int, unit: int) -> list[Span]:
    """Spans of `size` elements where each rank has `unit` of them, until there are none left."""
    return [(min(rank * unit, size), min((rank + 1) * unit, size)) for rank in range(ranks)]


def stores(span: Span, size: int, group: dist.ProcessGroup) -> bool:
    """Whether this rank stores its span of a tensor of `size` elements that `group` holds one copy of.

    Of several copies, the one that the first rank has a part of is stored. A tensor without elements is stored once.
    """
    if dist.get_global_rank(group, 0) != 0:
        return False
    return span[0] < span[1] or (size == 0 and dist.get_rank(group) == 0)


def assign_writers(sizes: Mapping[str, int]) -> dict[str, int]:
    """The rank that stores each tensor that all ranks hold whole: the largest first, to whom has the least so far.

    Args:
        sizes: by name, alike on every rank.
    """
    ranks = dist.get_world_size() if dist.is_initialized() else 1
    return dict(zip(sizes, collectives.balance(tuple(sizes.values()), ranks), strict=True))
