"""One training step, whole.

In: this rank's bins of one step. Out: new weights, and what happened. Kept: the model's and the optimizer's own state.

Nothing here waits for the device: the host queues the whole step, and `Outcome.read` waits for it, once. The loop may
queue the next step before that, so that the device always has one to take.

Contract C4 of docs/contracts.md, divide once: the model returns loss *sums*; the number of targets of the whole step,
over all ranks and micro-batches, is known before the first forward pass, and every sum is divided by it. With several
objectives, the loss is the sum of these means, each times its weight. So packing, accumulation, data and context
parallelism give the gradient of one big batch, however unevenly the targets are spread.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from data.batches.loader import Step
from pretrain.engine.engine import Engine
from pretrain.engine.ranks import NOTHING, StepFlags
from zymogen.processes import signals


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one step did, the same on every rank, on its way to the host; the device may not have taken the step yet."""

    words: Tensor
    """On the host: int64 counts, digests and what is told, then the bits of float64 numbers."""
    objectives: int
    floats: int
    """How many of the words are float64 numbers."""
    arrived: torch.cuda.Event | None = None
    """When `words` holds them; None: it does."""

    def read(self) -> "Reading":
        """Wait until the device has taken the step, and no longer."""
        if self.arrived:
            self.arrived.synchronize()
        objectives, integers = self.objectives, len(self.words) - self.floats
        told_from = integers - len(NOTHING)
        grad_norm, loss_scale, skipped, *means = self.words[integers:].view(torch.float64).tolist()
        counts, digests = self.words[:objectives].tolist(), self.words[objectives:told_from].tolist()
        told = StepFlags(*self.words[told_from:integers].tolist())
        losses = [mean if count else None for mean, count in zip(means, counts, strict=True)]
        return Reading(losses, counts, digests, told, grad_norm, loss_scale, applied=not skipped)


@dataclass(frozen=True, slots=True)
class Reading:
    """An `Outcome` on the host."""

    losses: list[float | None]
    """Mean loss of each objective over the step's targets, in nats; None without a target."""
    counts: list[int]
    """Targets of each objective."""
    digests: list[int]
    """Digest of each bin of the step, in global bin order."""
    told: StepFlags
    """The sum over ranks of what each was `StepFlags`."""
    grad_norm: float
    """Global gradient norm before clipping."""
    loss_scale: float
    """What the loss was multiplied by for the backward pass; 1 except in fp16."""
    applied: bool
    """False if the gradient was not finite and the weights stayed as they were."""


class InFlightSteps:
    """The steps that are queued on the device and of which the host does not know the results yet.

    A step is held until they are read: the device copies its batches out of pinned memory, and torch gives that away as
    soon as nobody holds it, since it does not know of the NumPy arrays that lie in it.

    Args:
        late: how many steps stay queued. 0: each is read at once; 1: the device has the next one to take meanwhile.
        taken: gets each step that is read, its results and its learning rate, in order.
    """

    def __init__(self, late: int, taken: Callable[[Step, Reading, float], None]) -> None:
        self._late, self._taken = late, taken
        self._queued: deque[tuple[Step, Outcome, float]] = deque()

    def __len__(self) -> int:
        return len(self._queued)

    @property
    def num_tokens(self) -> int:
        """Tokens of the steps that are queued."""
        return sum(step.num_tokens for step, _, _ in self._queued)

    def add(self, step: Step, outcome: Outcome, rate: float) -> None:
        """Count a step that was queued, with its learning rate."""
        self._queued.append((step, outcome, rate))

    def read(self, *, all_of_them: bool) -> StepFlags:
        """Read the steps that are queued: all of them, or, as long as none of them asks for anything, all but `late`.

        Returns:
            What all ranks told with the steps that were read, added up.
        """
        told = NOTHING
        while len(self._queued) > (0 if all_of_them or told.any_set else self._late):
            step, outcome, rate = self._queued.popleft()
            reading = outcome.read()
            self._taken(step, reading, rate)
            told = StepFlags(*map(sum, zip(told, reading.told, strict=True)))
        return told


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
    told: StepFlags = NOTHING,
) -> Outcome:
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
        told: what this rank has for the others.

    Raises:
        Interrupted: where a signal came before the step, on every rank and before anything is computed. With several
        ranks
            on GPUs the host would have to wait to know of it: this step is taken, and the loop stops after it.
    """
    batches = engine.micro_batches(step)

    # ---- count: targets of the whole step, the digests for the sample chain and what is told, in one all-reduce
    local_counts = torch.stack([batch.counts for batch in batches]).sum(0)
    objectives = len(local_counts)
    ledger = torch.zeros(objectives + bins_per_step + len(told), dtype=torch.int64)
    ledger[:objectives] = local_counts
    ledger[-len(told) :] = torch.tensor(told)
    if engine.context.rank == 0:  # once for each bin, though a context-parallel group shares it
        ledger[objectives + torch.tensor(step.bins)] = torch.cat([b.digests for b in step.batches])
    ledger = engine.sum_over_ranks(engine.on_device(ledger))
    if engine.world_size == 1:
        signals.raise_if_flagged(told.stop)
    elif ledger.is_cpu:  # elsewhere, the host would wait for the device
        signals.raise_if_flagged(int(ledger[-len(told)]))
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
    words = torch.cat([ledger, floats.view(torch.int64)])
    if not words.is_cuda:
        return Outcome(words, objectives, len(floats))
    pinned = torch.empty_like(words, device="cpu", pin_memory=True).copy_(words, non_blocking=True)
    arrived = torch.cuda.Event()  # type: ignore[no-untyped-call]
    arrived.record()
    return Outcome(pinned, objectives, len(floats), arrived)
