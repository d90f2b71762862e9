"""The loader: steps of G consecutive bins, dealt to ranks, filled by workers.

In: contents of bins, a plan, a cursor, the rank and the number of ranks. Out: one `Step` after the other, without end.
Kept: batches that workers have filled ahead. Each step has the cursor after it, so what was filled ahead does not count
as read.

A bin of `data.skip_bins` is planned, dealt and counted like any other, and then laid out without documents: nothing
else of the run changes, and its digest is 0, as in `Batch.idle`. Bins are numbered over all steps, from 0.

The plan is made in the training process and workers only fill bins, so neither their number nor how far they are ahead
can change the steps. torch's `DataLoader` runs the workers, keeps their order and pins memory: it gets one task for
each batch, and knows nothing about samples, shuffling or position.
"""

import multiprocessing
import os
import signal
import threading
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from multiprocessing import resource_tracker
from multiprocessing.context import BaseContext

import torch
from torch.utils.data import DataLoader, Dataset

from data.batches.batch import Batch
from data.batches.collate import FilledBin
from data.batches.contents import Contents
from data.order.balance import attention_cost, balance, imbalance
from data.order.plan import Bin, Cursor, Plan
from data.order.settings import forward_bins
from zymogen import keyed_random
from zymogen.files.durable import describe_os_error
from zymogen.processes import signals
from zymogen.processes.environment import use_short_sockets
from zymogen.settings import extension

_PREFETCH = 4
"""Batches that each worker fills ahead of the step: enough to hide an uneven one, and some kilobytes each."""


@dataclass(frozen=True, slots=True)
class Step:
    """What one rank needs for one optimizer step."""

    batches: tuple[Batch, ...]
    """This rank's bins, `bins_per_forward` in each batch; the last batch may have fewer."""
    max_micro_batches: int
    """Number of micro-batches of the rank that has the most."""
    bins: tuple[int, ...]
    """Index in the step, 0..G-1, of each of this rank's bins, in the order of `batches`."""
    num_tokens: int
    """Tokens of the whole step over all ranks, pad tokens not counted; with those of bins that are not trained, so that
    these change nothing else."""
    squared_lengths: int
    """Sum of the squared lengths in tokens of all documents of the step: the cost of attention."""
    cursor: Cursor
    """Where the bins continue after this step."""
    imbalance: float
    """Attention cost of the slowest rank divided by the mean."""


_Task = tuple[Bin, bool]
"""A bin that a worker fills, and whether it is trained: an empty one takes the place of one of `data.skip_bins`."""


class _Filler(Dataset[list[FilledBin]]):
    """Fills the bins of a batch; each worker holds one."""

    def __init__(self, contents: Contents) -> None:
        self._contents = contents

    def __getitem__(self, tasks: Sequence[_Task]) -> list[FilledBin]:
        extension.require_unchanged(self._contents.files)
        filled = ((self._contents.fill(bin_), is_trained) for bin_, is_trained in tasks)
        return [bin_ if is_trained else bin_.emptied() for bin_, is_trained in filled]


class Loader:
    """The steps from a cursor on.

    Args:
        contents: what the job puts into bins.
        plan: the plan of the run's bins.
        cursor: where the step `first_step` begins.
        first_step: number of the first step; the number of a step keys what the model draws in it.
        rank: number of this process among those to which bins are dealt.
        world_size: number of these processes; ranks that share their batches count as one.

    Raises:
        ValueError: a step has fewer bins than there are ranks, or `bins_per_forward` is no number yet.
    """

    def __init__(
        self, contents: Contents, plan: Plan, cursor: Cursor, first_step: int, rank: int, world_size: int
    ) -> None:
        settings = plan.settings
        require_enough_bins(settings.bins_per_step, world_size)
        self._contents, self.plan, self._cursor, self._number = contents, plan, cursor, first_step
        self._rank, self._world_size, self._per_forward = rank, world_size, forward_bins(settings)
        self._pinned = torch.cuda.is_available()
        self._planned: deque[tuple[Step, list[list[int]]]] = deque()
        """Steps whose batches are being filled, and the keys of the bins of each batch."""
        workers = settings.workers
        filled = DataLoader(
            _Filler(contents),
            batch_size=None,
            collate_fn=list,  # torch would convert it to tensors, which take far longer to send than small arrays
            sampler=self._tasks(),
            num_workers=workers,
            prefetch_factor=_PREFETCH if workers else None,
            worker_init_fn=_belong_to_the_trainer,
            # Not fork, which would copy the locks of the training process; spawn would start each worker slowly.
            multiprocessing_context=_forkserver(workers) if workers else None,
        )
        resource_tracker.ensure_running()  # it unblocks the signals, where it starts
        with signals.blocked():  # also in the server that forks the workers
            self._filled = iter(filled)

    def __iter__(self) -> Iterator[Step]:
        return self

    def __next__(self) -> Step:
        """The next step; waits for a source that is slower than training.

        Raises:
            RuntimeError: a worker has ended, and which one.
        """
        try:
            filled = [next(self._filled)]  # this also plans the step, if it was not planned ahead
            step, draw_keys = self._planned.popleft()
            filled += islice(self._filled, len(draw_keys) - 1)
        except RuntimeError as error:
            self._require_workers(error)
            raise
        batches = (
            self._contents.lay_out(bins, keys, pinned=self._pinned)
            for bins, keys in zip(filled, draw_keys, strict=True)
        )
        return replace(step, batches=tuple(batches))

    def _require_workers(self, error: RuntimeError) -> None:
        """Say what has become of a worker; torch tells its number alone."""
        workers = getattr(self._filled, "_workers", ())
        for number, worker in enumerate(workers):
            if worker.exitcode is not None:
                killed = signal.Signals(-worker.exitcode).name if worker.exitcode < 0 else ""
                how = f"was killed by {killed}" if killed else f"ended with status {worker.exitcode}"
                raise RuntimeError(
                    f"worker {number} of {len(workers)} that fill bins (pid {worker.pid}) {how}; if the "
                    "machine has run out of memory, lower data.workers; the same command continues"
                ) from error

    def close(self) -> None:
        """End the workers."""
        del self._filled

    def _tasks(self) -> Iterator[tuple[_Task, ...]]:
        """The bins of this rank's batches, step after step; a step is planned when its first batch is requested."""
        settings, seed = self.plan.settings, self.plan.seed
        stream = self.plan.bins(self._cursor)
        number, skipped = self._number, frozenset(settings.skip_bins)
        while True:
            bins, cursors = zip(*islice(stream, settings.bins_per_step), strict=True)
            costs = [attention_cost(b.lengths) for b in bins]
            dealt = balance(costs, self._world_size)
            mine = dealt[self._rank]
            per_forward = self._per_forward
            groups = [mine[i : i + per_forward] for i in range(0, len(mine), per_forward)]
            step = Step(
                batches=(),
                max_micro_batches=-(-max(map(len, dealt)) // per_forward),
                bins=tuple(mine),
                num_tokens=sum(b.num_tokens for b in bins),
                squared_lengths=sum(costs),
                cursor=cursors[-1],
                imbalance=imbalance(costs, dealt),
            )
            keys = [[keyed_random.key(seed, keyed_random.MODEL, number, i) for i in group] for group in groups]
            self._planned.append((step, keys))
            first = number * settings.bins_per_step
            for group in groups:
                yield tuple((bins[i], first + i not in skipped) for i in group)
            number += 1


def require_enough_bins(bins_per_step: int, world_size: int) -> None:
    """Raise ValueError if a step has fewer bins than there are ranks to deal them to."""
    if bins_per_step < world_size:
        raise ValueError(
            f"data.bins_per_step is {bins_per_step}, but {world_size} processes train: each needs a bin; "
            "raise bins_per_step (and lower bin_tokens by the same factor to keep the tokens of a step), "
            "start fewer processes, or let some share their bins with parallel.context"
        )


def _forkserver(workers: int) -> BaseContext:
    """The server that forks workers.

    Raises:
        ValueError: /dev/shm, or the folder of sockets, cannot be used by so many.
    """
    use_short_sockets()
    context = multiprocessing.get_context("forkserver")
    try:
        _ = [context.Lock() for _ in range(4 * (workers + 2))]  # as many as torch makes, and released at once
    except OSError as error:
        raise ValueError(
            f"/dev/shm cannot be used: {describe_os_error(error)}; data.workers = {workers} needs it: free space "
            "there, give the container more (docker run --shm-size=1g), or set data.workers=0"
        ) from error
    # The kernel's signal follows the thread that starts the server: only the main one lives as long as the process.
    first = ["data.batches.forked_from"] if threading.current_thread() is threading.main_thread() else []
    context.set_forkserver_preload([*first, "data.batches.loader", "numba"])  # imported once, not by each worker
    return context


def _belong_to_the_trainer(worker: int) -> None:
    """Put a worker into a group of its own, where only the training process ends it, also by being killed."""
    threading.Thread(target=_end_with_the_trainer, name="parent", daemon=True).start()
    os.setsid()
    for each in signals.SIGNALS:
        before = signal.signal(each, signal.SIG_IGN)  # drops one that came by now
        signal.signal(each, before or signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, signals.SIGNALS)


def _end_with_the_trainer() -> None:
    """Wait for the trainer's end. torch's workers look at their server, which lives as long as one of them does."""
    trainer = multiprocessing.parent_process()
    assert trainer
    trainer.join()
    os._exit(3)
