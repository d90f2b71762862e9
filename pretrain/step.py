"""One training step, whole.

In: this rank's bins of one step. Out: new weights, and what happened. Kept: the model's and the optimizer's own state.

Contract C4, divide once: the model returns loss *sums*; the number of targets of the whole step, over all ranks and
micro-batches, is known before the first forward pass, and every sum is divided by it. So packing, accumulation and
data parallelism give the gradient of one big batch, however unevenly the targets are spread.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from data.loader import Step
from pretrain.engine.launch import Engine


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one step did, the same on every rank."""

    losses: Tensor
    """(objectives,) float32: mean loss of each objective over the step's targets, in nats."""
    counts: Tensor
    """(objectives,) int64: targets of the step."""
    digests: list[int]
    """Digest of each bin of the step, in global bin order."""
    grad_norm: float
    """Global gradient norm before clipping."""
    applied: bool
    """False if the gradient was not finite and the weights were left alone."""


def train_step(
    step: Step,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    engine: Engine,
    *,
    bins_per_step: int,
    clip_norm: float,
    learning_rate: float,
) -> Outcome:
    """Read the window, count once, forward and backward by micro-batch, clip, update."""
    # ---- count: targets of the whole step, and the digests for the sample chain, in one all-reduce
    local_counts = torch.stack([batch.counts for batch in step.batches]).sum(0)
    objectives = len(local_counts)
    ledger = torch.zeros(objectives + bins_per_step, dtype=torch.int64)
    ledger[:objectives] = local_counts
    ledger[objectives + torch.tensor(step.bins)] = torch.cat([b.digests for b in step.batches])
    ledger = engine.sum_over_ranks(ledger)
    counts, digests = ledger[:objectives], ledger[objectives:].tolist()
    divisor = counts.clamp(min=1).to(engine.device)

    # ---- forward and backward: gradients are exchanged with the last micro-batch only
    sums = torch.zeros(objectives, device=engine.device)
    for index, batch in enumerate(step.batches):
        on_device = batch.to(engine.device)
        with engine.accumulating(model, exchange=index + 1 == len(step.batches)):
            with engine.autocast():
                loss_sums = model(on_device)
            engine.backward((loss_sums / divisor).sum())
        sums += loss_sums.detach()

    # ---- update: a gradient that is not finite is the same on every rank, so all of them skip
    grad_norm = engine.clip_gradients(model, clip_norm)
    applied = bool(torch.isfinite(grad_norm))
    if applied:
        for group in optimizer.param_groups:
            group["lr"] = learning_rate
        optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    losses = engine.sum_over_ranks(sums) / divisor
    return Outcome(losses.cpu(), counts, digests, float(grad_norm), applied)
