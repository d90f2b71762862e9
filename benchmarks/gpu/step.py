"""One training step on a GPU: nothing waits for the device, float16 learns, Muon is that of the papers.

In: a place. Out: findings. Kept: nothing.

The step is `pretrain.step.train_step` where Accelerate can be imported, else one of the same parts, written here.
"""

from collections.abc import Callable, Iterator
from dataclasses import fields, replace
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.gpu.machine import Place, has, wait
from benchmarks.gpu.parity import batch_of
from benchmarks.gpu.results import Finding
from data.batches.batch import Batch
from pretrain.model.compute import configure
from pretrain.model.initial import initialise
from pretrain.model.masked_language_model import MaskedLanguageModel
from pretrain.model.presets import PRESETS
from pretrain.model.settings import ComputeSettings
from pretrain.optimizer.build import build_optimizer
from pretrain.optimizer.groups import parameter_groups
from pretrain.optimizer.muon import Muon
from pretrain.optimizer.settings import OptimizerSettings

COMPUTE = {"bf16": torch.bfloat16, "fp16": torch.float16}


def stepper(
    place: Place, precision: str, optimizer: OptimizerSettings, compute: ComputeSettings, rate: float
) -> tuple[Callable[[], Any], str]:
    """A function that takes a step on two micro-batches and returns the mean loss on the device; the step's name."""
    model = MaskedLanguageModel(PRESETS["esm2_60k" if place.dry else "esm2_8m"])
    initialise(model, 0)
    configure(model.encoder, compute, place.device, COMPUTE[precision])
    model.to(place.device)
    batches = [batch_of([[100, 60, 33], [70, 90]], 256, seed) for seed in (1, 2)]
    if place.device.type == "cuda":
        batches = [_pinned(batch) for batch in batches]
    moved = build_optimizer(parameter_groups(model, optimizer), optimizer)
    if not has("accelerate"):
        for group in moved.param_groups:
            group["lr"] = rate
        return plain_step(batches, model, moved, precision, place.device), "forward, backward, update"
    from accelerate import Accelerator

    from data.batches.loader import Step
    from data.order.plan import Cursor
    from pretrain.engine.engine import Engine
    from pretrain.step import train_step

    engine = Engine(Accelerator(cpu=place.dry, mixed_precision="no"), precision)
    prepared, wrapped = engine.prepare(model, moved)
    step = Step(tuple(batches), len(batches), (0, 1, 2, 3), 706, 0, Cursor(), 1.0)

    weights = torch.ones(1, device=place.device)

    def take() -> Tensor:
        how = {"bins_per_step": 4, "clip_norm": 1.0, "learning_rate": rate}
        outcome = train_step(step, prepared, wrapped, engine, weights=weights, **how)
        return outcome.losses

    return take, "pretrain.step.train_step"


def plain_step(
    batches: list[Batch], model: nn.Module, optimizer: torch.optim.Optimizer, precision: str, device: torch.device
) -> Callable[[], Tensor]:
    """The parts of a step, for a machine without Accelerate; returns its mean loss, on the device."""
    scaler = torch.amp.GradScaler(device.type, enabled=precision == "fp16")
    targets = sum(len(batch.targets[0].slots) for batch in batches)

    def take() -> Tensor:
        total = torch.zeros((), device=device)
        for batch in batches:
            with torch.autocast(device.type, COMPUTE[precision]):
                loss = model(batch.to(device)).sum() / targets
            torch.autograd.backward(scaler.scale(loss))
            total += loss.detach()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad(set_to_none=True)
        return total

    return take


def _pinned(batch: Batch) -> Batch:
    moved: dict[str, Any] = {
        f.name: value.pin_memory() for f in fields(batch) if isinstance(value := getattr(batch, f.name), Tensor)
    }
    return replace(batch, **moved)


def no_wait(place: Place) -> Iterator[Finding]:
    """Steps under torch's check for synchronisation, which raises; 1 where it did not."""
    eager = ComputeSettings(compile="off")
    yield _watched("AdamW", place, OptimizerSettings(), eager)
    yield _watched("Muon", place, OptimizerSettings(name="muon"), eager)


def no_wait_compiled(place: Place) -> Iterator[Finding]:
    """The same of a compiled model with selective checkpointing."""
    yield _watched("", place, OptimizerSettings(), ComputeSettings(compile="on", checkpointing="selective"))


def _watched(what: str, place: Place, optimizer: OptimizerSettings, compute: ComputeSettings) -> Finding:
    take, name = stepper(place, "bf16", optimizer, compute, 1e-4)
    for _ in range(3):  # makes what is made once, such as frequencies, libraries' handles and compiled code
        take()
    wait(place.device)
    watched = place.device.type == "cuda"
    if watched:
        torch.cuda.set_sync_debug_mode("error")
    try:
        for _ in range(2):
            take()
    finally:
        if watched:
            torch.cuda.set_sync_debug_mode("default")
    return Finding(what, 1.0, note=name, judged=True)


def float16(place: Place) -> Iterator[Finding]:
    """Loss after 20 steps with a loss scale, over the loss before."""
    take, name = stepper(place, "fp16", OptimizerSettings(), ComputeSettings(compile="off"), 2e-3)
    losses = [float(take().sum()) for _ in range(20)]
    yield Finding("", losses[-1] / losses[0], note=f"{losses[0]:.3f} to {losses[-1]:.3f} nats, {name}", judged=True)


SHAPES = ((48, 16), (12, 40), (24, 24), (48, 16), (96, 8), (768, 256))
"""Shapes of matrices; a dry run leaves out the last, which is slow in bfloat16 on a CPU."""
RATES = (1e-3, 4e-3, 2e-3, 1e-3)
DECAY = 0.1


def muon(place: Place, dtype: str) -> Iterator[Finding]:
    """Distance of Muon's weights from float64's on the host, over how far they moved: the worst matrix and blocks."""
    worst, shapes = 0.0, SHAPES[:-1] if place.dry else SHAPES
    for blocks in (1, 2, 3):
        generator = torch.Generator().manual_seed(3)
        before = [torch.randn(shape, generator=generator) * 0.02 for shape in shapes]
        # Gradients of very different sizes, which must not matter.
        given = [
            [torch.randn(shape, generator=generator) * 10.0 ** -(2 + step % 3) for shape in shapes]
            for step in range(len(RATES))
        ]
        matrices = [nn.Parameter(matrix.to(place.device, copy=True)) for matrix in before]
        groups = [{"params": matrices, "weight_decay": DECAY, "blocks": blocks}]
        optimizer = Muon(groups, momentum=0.95, newton_schulz=dtype, betas=(0.9, 0.98), eps=1e-8)
        for rate, now in zip(RATES, given, strict=True):
            optimizer.param_groups[0]["lr"] = rate
            for matrix, gradient in zip(matrices, now, strict=True):
                matrix.grad = gradient.to(place.device)
            optimizer.step()
        for index, (matrix, start) in enumerate(zip(matrices, before, strict=True)):
            expected = _muon_by_hand(start.double(), [now[index].double() for now in given], blocks)
            distance = (matrix.detach().cpu().double() - expected).norm() / (expected - start.double()).norm()
            worst = max(worst, float(distance))
    yield Finding("", worst, note=f"matrices up to {max(shapes)}", judged=True)


def _muon_by_hand(weights: Tensor, gradients: list[Tensor], blocks: int) -> Tensor:
    """Muon as the papers write it; `test_pretrain_muon.py` compares `pretrain.optimizer.muon` with it on a CPU."""
    momentum = torch.zeros_like(weights)
    for gradient, rate in zip(gradients, RATES, strict=True):
        momentum = 0.95 * momentum + 0.05 * gradient
        moved = []
        for block in (0.05 * gradient + 0.95 * momentum).chunk(blocks):
            x = block / block.norm()
            for _ in range(5):
                s = x @ x.T
                x = 3.4445 * x + (-4.7750 * s + 2.0315 * s @ s) @ x
            moved.append(0.2 * max(block.shape) ** 0.5 * x)
        weights = weights - rate * DECAY * weights - rate * torch.cat(moved)
    return weights
