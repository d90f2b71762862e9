"""One training step, whole.

In: this rank's bins of one step. Out: new weights, and what happened. Kept: the model's and the optimizer's own state.

Nothing here waits for the device: the host queues the whole step, and `Outcome.read` waits for it, once.

Contract C4 of docs/contracts.md, divide once: the model returns loss *sums*; the number of targets of the whole step,
over all ranks and micro-batches, is known before the first forward pass, and every sum is divided by it. With several
objectives, the loss is the sum of these means, each times its weight. So packing, accumulation, data and context
parallelism give the gradient of one big batch, however unevenly the targets are spread.
"""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn

from data.batches.loader import Step
from pretrain.engine.engine import Engine
from pretrain.run import stop


class Told(NamedTuple):
    """What a rank tells all others with a step, as numbers that are summed over ranks."""

    stop: int = 0
    """`run.stop.word` of each rank."""
    writing: int = 0
    """These three are `checkpoint.saves.Words` of each rank."""
    failed: int = 0
    overdue: int = 0
    save: int = 0
    """Rank 0: whether its clock says that a checkpoint is due. Any rank: whether SIGUSR1 asks for one."""
    validate: int = 0
    """Rank 0: whether its clock says that a validation is due."""


NOTHING = Told()


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one step did, the same on every rank; on the device, where it may not have happened yet."""

    losses: Tensor
    """(objectives,) float32: mean loss of each objective over the step's targets, in nats; 0 without a target."""
    counts: Tensor
    """(objectives,) int64: targets of the step."""
    digests: Tensor
    """(bins_per_step,) int64: digest of each bin of the step, in global bin order."""
    told: Tensor
    """(6,) int64: the sum over ranks of what each was `Told`."""
    grad_norm: Tensor
    """() float32: global gradient norm before clipping."""
    loss_scale: Tensor
    """() float32: what the loss was multiplied by for the backward pass; 1 except in fp16."""
    skipped: Tensor
    """() float32: 1 if the gradient was not finite and the weights stayed as they were, else 0."""

    def read(self) -> "Reading":
        """The same on the host, in one copy: waits until the device has done all that is queued."""
        floats = torch.cat([torch.stack([self.grad_norm, self.loss_scale, self.skipped]), self.losses]).double()
        words = torch.cat([self.counts, self.digests, self.told, floats.view(torch.int64)]).cpu()
        objectives, integers = len(self.counts), len(words) - len(floats)
        grad_norm, loss_scale, skipped, *means = words[integers:].view(torch.float64).tolist()
        counts, digests = words[:objectives].tolist(), words[objectives : integers - len(self.told)].tolist()
        told = Told(*words[integers - len(self.told) : integers].tolist())
        losses = [mean if count else None for mean, count in zip(means, counts, strict=True)]
        return Reading(losses, counts, digests, told, grad_norm, loss_scale, applied=not skipped)


@dataclass(frozen=True, slots=True)
class Reading:
    """An `Outcome` on the host."""

    losses: list[float | None]
    """None of an objective without a target in the step: it has no mean."""
    counts: list[int]
    digests: list[int]
    told: Told
    grad_norm: float
    loss_scale: float
    applied: bool
    """False if the gradient was not finite and the weights stayed as they were."""


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
    told: Told = NOTHING,
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
        Stopped: where a signal came before the step, on every rank and before anything is computed. With several ranks
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
    counts, digests, all_told = ledger[:objectives], ledger[objectives : -len(told)], ledger[-len(told) :]
    if engine.world_size == 1:
        stop.obey(told.stop)
    elif all_told.is_cpu:  # elsewhere, the host would wait for the device
        stop.obey(int(all_told[0]))
    divisor = counts.clamp(min=1)

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
    return Outcome(losses, counts, digests, all_told, grad_norm, loss_scale, skipped)
