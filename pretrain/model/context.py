"""Context parallelism: ranks that share every batch, each with consecutive slots of it.

In: how many ranks, and the exchange that the user asked for. Out: this rank's share, and how attention reaches the
others. Kept: process groups by name, as long as a `ContextShard` has them.
"""

from dataclasses import dataclass, field
from typing import Any, Literal, get_args
from weakref import WeakValueDictionary

import torch.distributed as dist

from data.batches.batch import span_of_rank
from zymogen.trainer.engine.settings import ExchangeRequest

Exchange = Literal["ulysses", "all_gather"]
"""`ulysses`: during attention, each rank holds all slots of a share of the heads. `all_gather`: each rank holds the
queries of its own slots, and the keys and values of all slots. That works for any number of heads, but ranks with
longer documents are waited for, and more than 2 ranks exchange more bytes."""


@dataclass(frozen=True, slots=True)
class ContextShard:
    """This rank's place among the ranks that share its batches."""

    rank: int
    """Number of this rank in `group`."""
    size: int
    """Number of ranks in `group`."""
    exchange: Exchange
    group: dist.ProcessGroup
    name: str = field(init=False)
    """Name of `group`; the operators that exchange find it by this name."""

    def __post_init__(self) -> None:
        """Refuse values that contradict the group, and an unknown exchange."""
        if (self.rank, self.size) != (self.group.rank(), self.group.size()):
            raise ValueError(
                f"rank {self.rank} of {self.size}, in a group where this is rank {self.group.rank()} of "
                f"{self.group.size()}: must be equal"
            )
        if self.exchange not in get_args(Exchange):
            raise ValueError(f"exchange is {self.exchange!r}; allowed are {', '.join(get_args(Exchange))}")
        object.__setattr__(self, "name", str(self.group.group_name))
        _groups[self.name] = self.group

    def __deepcopy__(self, memo: dict[int, Any]) -> "ContextShard":
        """The same object: a process group cannot be copied, and a model's copy shares batches with the same ranks."""
        return self

    def span(self, slots: int) -> tuple[int, int]:
        """First and end slot of this rank's share of a batch of `slots`."""
        return span_of_rank(slots, self.rank, self.size)


_groups: WeakValueDictionary[str, dist.ProcessGroup] = WeakValueDictionary()


def group_of(name: str) -> dist.ProcessGroup:
    """The group of the `ContextShard` of that name."""
    return _groups[name]


def choose_exchange(request: ExchangeRequest, heads: int, size: int) -> tuple[Exchange, tuple[str, ...]]:
    """The exchange to take, and a line where that is not the first choice.

    Args:
        request: `auto`, or the one that must be taken.
        heads: attention heads of the model.
        size: ranks that share a batch.

    Raises:
        ValueError: the exchange that was asked for does not work with these heads, or does not exist.
    """
    if request not in get_args(ExchangeRequest):
        raise ValueError(f"parallel.exchange is {request!r}; allowed are {', '.join(get_args(ExchangeRequest))}")
    if request == "all_gather":
        return request, ()
    if heads % size == 0:
        return "ulysses", ()
    obstacle = f"ulysses gives each rank as many heads, and parallel.context {size} does not divide {heads} heads"
    if request == "ulysses":
        divisors = ", ".join(str(n) for n in range(2, heads + 1) if heads % n == 0)
        raise ValueError(
            f"parallel.exchange is 'ulysses', but {obstacle}; take 'auto' or 'all_gather', or a parallel.context of "
            f"{divisors or 1}"
        )
    return "all_gather", (f"exchange: not ulysses, because {obstacle}",)
