"""Spans: a tensor that ranks hold in parts, and how it becomes whole on one of them.

In: this rank's part of a tensor, and the range `[start, stop)` of its flattened form that each rank holds. Out: the
whole tensor on the first rank; or this rank's part, filled from a file or a draw. Kept: nothing.

Owners send their parts to the first rank alone, one tensor at a time: an all-gather would give every rank a whole
tensor that it does not need.
"""

from collections.abc import Callable, Sequence

import torch
import torch.distributed as dist
from torch import Tensor

Span = tuple[int, int]
"""Range `[start, stop)` of a flattened tensor."""
Read = Callable[[int, int], Tensor]
"""A range `[start, stop)` of a flattened tensor: ``(stop - start,)`` float32 on the host."""


def is_first_rank() -> bool:
    """Whether whole tensors are put together on this rank; true if there is one process."""
    return not dist.is_initialized() or dist.get_rank() == 0


def dealt(size: int, ranks: int, unit: int) -> list[Span]:
    """Spans of `size` elements where each rank has `unit` of them, until there are none left."""
    return [(min(rank * unit, size), min((rank + 1) * unit, size)) for rank in range(ranks)]


def gathered(part: Tensor, spans: Sequence[Span], group: dist.ProcessGroup) -> Tensor | None:
    """The whole flattened tensor on the first rank, None on the others; collective.

    Args:
        part: what this rank holds, flattened and contiguous, on the device that `group` sends from.
        spans: of every rank of `group`, in its order; together they cover the tensor.
        group: the ranks that hold one copy. A group without the first rank holds another copy, and sends nothing.
    """
    if dist.get_global_rank(group, 0) != 0:
        return None
    if dist.get_rank(group) != 0:
        if part.numel():
            _exchange([dist.P2POp(dist.isend, part, group=group, group_peer=0)])
            if part.is_cuda:
                # NCCL's `wait` lets the stream wait, not the host: this rank would queue the sends of a whole
                # checkpoint in milliseconds, and each send's timeout runs from then on while the first rank writes.
                torch.cuda.current_stream(part.device).synchronize()
        return None
    whole = part.new_empty(sum(stop - start for start, stop in spans))
    whole[slice(*spans[0])] = part
    _exchange(
        [
            dist.P2POp(dist.irecv, whole[start:stop], group=group, group_peer=peer)
            for peer, (start, stop) in enumerate(spans)
            if peer and start < stop
        ]
    )
    return whole


def _exchange(messages: list[dist.P2POp]) -> None:
    for message in dist.batch_isend_irecv(messages) if messages else ():
        message.wait()


def whole_on_host(tensor: Tensor | None, shape: Sequence[int]) -> Tensor | None:
    """What `gathered` returned, in the tensor's `shape`, float32 on the host."""
    return None if tensor is None else tensor.reshape(tuple(shape)).to("cpu", torch.float32)
