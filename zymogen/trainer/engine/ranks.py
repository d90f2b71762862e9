"""Ranks: which one this process is, and what all of them do together.

In: the Accelerator. Out: sums, objects and work shared between ranks; the group of ranks that share this rank's batches
(`parallel.context`). Its ranks are neighbours, so it lies inside a node wherever its size divides the ranks of one.
Kept: nothing; the process groups are torch's.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from signal import Signals
from typing import TYPE_CHECKING, Any, TypeVar, cast

import torch
import torch.distributed as dist
from torch import Tensor

from zymogen.processes import signals
from zymogen.processes.errors import PeerError
from zymogen.processes.launcher import launched_world
from zymogen.processes.signals import Interrupted

if TYPE_CHECKING:
    from accelerate import Accelerator  # a bare GPU machine lacks it

T = TypeVar("T")

PATIENCE = timedelta(hours=6)
"""How long ranks wait for work that one of them does; longest where rank 0 builds a token store of hundreds of millions
of records. A rank that dies is noticed at once nevertheless: its connections close, and the launcher ends the others.
"""
TIMEOUT = timedelta(minutes=30)
"""How long ranks wait for one another where all of them compute, if a recipe does not say."""


@dataclass(frozen=True)
class Ranks:
    """This process among those that train together."""

    accelerator: "Accelerator"
    timeout: timedelta = field(default=TIMEOUT, kw_only=True)
    """How long a rank waits for the others in an exchange of tensors; that of every group of ranks but `patient`."""
    patient: "dist.ProcessGroup | None" = field(default=None, kw_only=True, repr=False, compare=False)
    """All ranks, for objects and for work that one of them does, which waits for `PATIENCE`; None: the world's."""

    @property
    def rank(self) -> int:
        """This process's number in the world."""
        return int(self.accelerator.process_index)

    @property
    def world_size(self) -> int:
        """Number of processes that train together."""
        return int(self.accelerator.num_processes)

    @property
    def is_main(self) -> bool:
        """Whether this is rank 0, which alone writes files and prints."""
        return self.rank == 0

    @property
    def device(self) -> torch.device:
        """Where this rank computes."""
        return cast(torch.device, self.accelerator.device)

    @property
    def ranks_per_node(self) -> int:
        """Ranks on this machine; all of them if the launcher does not set it."""
        return launched_world().local_world_size or self.world_size

    def on_device(self, values: Tensor) -> Tensor:
        """Copy a small tensor to the device; from pinned memory, so that host and device do not wait for each other."""
        if self.device.type == "cuda":
            values = values.pin_memory()
        return values.to(self.device, non_blocking=True)

    def sum_over_ranks(self, values: Tensor) -> Tensor:
        """Elementwise sum of tensors on the device, the same on every rank; integers wrap modulo 2**64."""
        if self.world_size == 1:
            return values
        total = values.clone()
        dist.all_reduce(total)
        return total

    def send(self, values: Tensor, source: int) -> Tensor:
        """One rank's tensor on the device, which takes the place of the other ranks' values."""
        if self.world_size > 1:
            dist.broadcast(values, source)
        return values

    def gather(self, value: T) -> list[T]:
        """Every rank's `value`, in rank order, on every rank."""
        if self.world_size == 1:
            return [value]
        values: list[Any] = [None] * self.world_size
        dist.all_gather_object(values, value, group=self.patient)
        return cast(list[T], values)

    def raise_if_interrupted(self) -> None:
        """Stop here, on every rank, if any rank got a signal; collective.

        Raises:
            Interrupted: with `agreed`.
        """
        signals.raise_if_flagged(sum(self.gather(signals.signal_flag())))

    def on_main(self, work: Callable[[], T]) -> T:
        """Do `work` on rank 0, and return its result on every rank. If it raises there, every rank stops.

        Raises:
            PeerError: on the other ranks, where `work` raised on rank 0.
            Interrupted: on all of them, where a signal ended `work`.
        """
        if self.world_size == 1:
            return work()
        answer: list[Any] = [None, None]
        failure: BaseException | None = None
        if self.is_main:
            try:
                answer[0] = work()
            except Interrupted as stopped:
                failure, answer[1] = stopped, stopped.by
            except Exception as error:
                failure, answer[1] = error, f"{type(error).__name__}: {error}"
        dist.broadcast_object_list(answer, src=0, group=self.patient)
        if failure:
            raise failure
        if isinstance(answer[1], Signals):
            raise Interrupted(answer[1])
        if answer[1] is not None:
            raise PeerError(f"rank 0 failed: {answer[1]}")
        return cast(T, answer[0])

    def on_each_node(self, work: Callable[[], T]) -> T:
        """Do `work` on rank 0, then on the first rank of every other node; return the result of this rank's node.

        If it raises anywhere, all stop. Nodes that share a disk find there what rank 0 made; other nodes make their
        own.

        Raises:
            PeerError: on the other ranks, where `work` raised on one.
        """
        made = self.on_main(work)
        if self.world_size == self.ranks_per_node:
            return made
        answer: tuple[T | None, str | None] = made, None
        failure: BaseException | None = None
        if self.rank % self.ranks_per_node == 0 and not self.is_main:
            try:
                answer = work(), None
            except Exception as error:
                failure, answer = error, (None, f"rank {self.rank} failed: {type(error).__name__}: {error}")
        answers = self.gather(answer)
        if failure:
            raise failure
        for _, failed in answers:
            if failed:
                raise PeerError(failed)
        return cast(T, answers[self.rank - self.rank % self.ranks_per_node][0])


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
