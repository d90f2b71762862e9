"""One training step, whole.

In: this rank's bins of one step. Out: new weights, and what happened. Kept: the model's and the optimizer's own state.

Nothing here waits for the device: the host queues the whole step, and `StepResult.to_host` waits for it. The loop may
queue the next step before that, so that the device always has one to take.

Contract C4 of docs/contracts.md, divide once: the model returns loss *sums*; the number of targets of the whole step,
over all ranks and micro-batches, is known before the first forward pass, and every sum is divided by it. With several
objectives, the loss is the sum of these means, each times its weight. So packing, accumulation, data and context
parallelism give the gradient of one big batch, however unevenly the targets are spread.
"""

from collections import deque
from dataclasses import dataclass
from functools import cached_property
from typing import Self

import torch
from torch import Tensor, nn

from data.batches.loader import Step
from zymogen.processes import signals
from zymogen.trainer.engine.engine import Engine
from zymogen.trainer.flags import NO_FLAGS, StepFlags


@dataclass(frozen=True)
class StepResult:
    """What one step did, the same on every rank. The device may not have taken the step yet: `to_host` waits for it."""

    packed: Tensor
    """On the host: int64 counts, digests and flags, then the bits of float64 numbers."""
    num_objectives: int
    num_floats: int
    ready: torch.cuda.Event | None = None
    """When `packed` holds them; None: it does."""

    def to_host(self) -> Self:
        """Wait until the device has taken the step, and no longer."""
        if self.ready:
            self.ready.synchronize()
        return self

    @cached_property
    def _integers(self) -> list[int]:
        integers: list[int] = self.to_host().packed[: -self.num_floats].tolist()
        return integers

    @cached_property
    def _floats(self) -> list[float]:
        floats: list[float] = self.to_host().packed[-self.num_floats :].view(torch.float64).tolist()
        return floats

    @property
    def counts(self) -> list[int]:
        """Targets of each objective."""
        return self._integers[: self.num_objectives]

    @property
    def digests(self) -> list[int]:
        """Digest of each bin of the step, in global bin order."""
        return self._integers[self.num_objectives : -len(NO_FLAGS)]

    @property
    def flags(self) -> StepFlags:
        """The sum over ranks."""
        return StepFlags(*self._integers[-len(NO_FLAGS) :])

    @property
    def grad_norm(self) -> float:
        """Global gradient norm before clipping."""
        return self._floats[0]

    @property
    def loss_scale(self) -> float:
        """What the loss was multiplied by for the backward pass; 1 except in fp16."""
        return self._floats[1]

    @property
    def applied(self) -> bool:
        """False if the gradient was not finite and the weights stayed as they were."""
        return not self._floats[2]

    @property
    def losses(self) -> list[float | None]:
        """Mean loss of each objective over the step's targets, in nats; None without a target."""
        return [mean if count else None for mean, count in zip(self._floats[3:], self.counts, strict=True)]


class InFlightSteps:
    """The steps that are queued on the device and of which the host does not know the results yet.

    A step is held until they are read: the device copies its batches out of pinned memory, and torch gives that away as
    soon as nobody holds it, since it does not know of the NumPy arrays that lie in it.

    Args:
        depth: how many steps stay queued. 0: each is read at once; 1: the device has the next one to take meanwhile.
    """

    def __init__(self, depth: int) -> None:
        self._depth = depth
        self._queued: deque[tuple[Step, StepResult, float]] = deque()

    def __len__(self) -> int:
        return len(self._queued)

    @property
    def num_tokens(self) -> int:
        """Tokens of the steps that are queued."""
        return sum(step.num_tokens for step, _, _ in self._queued)

    def push(self, step: Step, result: StepResult, learning_rate: float) -> None:
        """Add a step that was queued on the device."""
        self._queued.append((step, result, learning_rate))

    def pop(self, *, drain: bool) -> tuple[Step, StepResult, float] | None:
        """Remove and return the oldest step, if more than `depth` are queued, or, to `drain`, if any is."""
        return self._queued.popleft() if len(self._queued) > (0 if drain else self._depth) else None


def train_step(
    step: Step,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    engine: Engine,
    *,
    bins_per_step: int,
    weights: Tensor,
    clip_norm: float,
    learning_rate: float,
    flags: StepFlags = NO_FLAGS,
) -> StepResult:
    """Read the window, count once, forward and backward by micro-batch, clip, update.

    Args:
        step: this rank's bins.
        model: as the engine prepared it; gives the sum of each objective's losses over a batch.
        optimizer: as the engine prepared it. Parameter groups may have an `lr_scale`.
        engine: the one that prepared both.
        bins_per_step: over all ranks.
        weights: (objectives,) float32 on the device.
        clip_norm: largest global norm of the gradient.
        learning_rate: of this step.
        flags: of this rank, to be summed over ranks.

    Raises:
        Interrupted: where a signal came before the step, on every rank and before anything is computed. With several
            ranks on GPUs the host would have to wait to know of it: this step is taken, and the loop stops after it.
    """
    batches = engine.micro_batches(step)

    # ---- count: targets of the whole step, the digests for the sample chain and the flags, in one all-reduce
    local_counts = torch.stack([batch.counts for batch in batches]).sum(0)
    objectives = len(local_counts)
    ledger = torch.zeros(objectives + bins_per_step + len(flags), dtype=torch.int64)
    ledger[:objectives] = local_counts
    ledger[-len(flags) :] = torch.tensor(flags)
    if engine.context.rank == 0:  # once for each bin, though a context-parallel group shares it
        ledger[objectives + torch.tensor(step.bins)] = torch.cat([b.digests for b in step.batches])
    ledger = engine.sum_over_ranks(engine.on_device(ledger))
    if engine.world_size == 1:
        signals.raise_if_flagged(flags.interrupt)
    elif ledger.is_cpu:  # elsewhere, the host would wait for the device
        signals.raise_if_flagged(int(ledger[-len(flags)]))
    divisor = ledger[:objectives].clamp(min=1)

    # ---- forward and backward: the engine decides what is exchanged with each micro-batch or the last
    sums = torch.zeros(bins_per_step, objectives, device=engine.device)  # a row for each batch
    for index, batch in enumerate(batches):
        on_device = batch.to(engine.device)
        with engine.accumulating(model, last=index + 1 == len(batches)):
            with engine.autocast():
                loss_sums = model(on_device)
            engine.backward(model, (weights * (loss_sums / divisor)).sum())
        if index < len(step.batches):  # the others are idle
            sums[step.bins[index]] = loss_sums.detach()

    # ---- update: a gradient that is not finite is the same on every rank, so all of them skip
    loss_scale = engine.loss_scale()
    for group in optimizer.param_groups:
        group["lr"] = learning_rate * group.get("lr_scale", 1.0)
    grad_norm, skipped = engine.update(model, optimizer, clip_norm)
    losses = engine.sum_over_ranks(sums).sum(0) / divisor

    # ---- send: in one copy, which is queued here, so that what the host queues later does not delay it
    floats = torch.cat([torch.stack([grad_norm, loss_scale, skipped]), losses]).double()
    packed = torch.cat([ledger, floats.view(torch.int64)])
    if not packed.is_cuda:
        return StepResult(packed, objectives, len(floats))
    pinned = torch.empty_like(packed, device="cpu", pin_memory=True).copy_(packed, non_blocking=True)
    ready = torch.cuda.Event()  # type: ignore[no-untyped-call]
    ready.record()
    return StepResult(pinned, objectives, len(floats), ready)
