"""One training step on a GPU: nothing waits, what reading late gains, float16 learns, Muon is that of the papers.

In: a place. Out: findings; steps, which `benchmarks.gpu.engines` takes too. Kept: nothing.

The step is `trainer.step.train_step` where Accelerate can be imported, else one of the same parts, written here.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from statistics import median
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from benchmarks.gpu.machine import Place, has, timed, wait
from benchmarks.gpu.parity import batch_of
from benchmarks.gpu.results import Finding
from benchmarks.training import initial
from data.batches.batch import Batch
from pretrain.model.compute import configure
from pretrain.model.settings import ComputeSettings
from zymogen.trainer.optimizer.kinds import build_optimizer, parameter_groups
from zymogen.trainer.optimizer.muon import Muon
from zymogen.trainer.optimizer.settings import OptimizerSettings

if TYPE_CHECKING:
    from zymogen.trainer.engine.engine import Engine
    from zymogen.trainer.step import StepResult

COMPUTE = {"bf16": torch.bfloat16, "fp16": torch.float16}
CLIP = 1.0


def program_step(
    engine: "Engine", model: nn.Module, optimizer: torch.optim.Optimizer, batches: Sequence[Batch], rate: float
) -> Callable[[], Tensor]:
    """`trainer.step.train_step` with what `engine` prepared; returns the mean loss, once the device has taken it."""
    from data.batches.loader import Step
    from data.order.plan import Cursor
    from zymogen.trainer.step import train_step

    tokens = [end - start for batch in batches for start, end in batch.spans]
    bins = sum(batch.num_bins for batch in batches)
    squares = sum(n * n for n in tokens)
    step = Step(tuple(batches), len(batches), tuple(range(bins)), sum(tokens), squares, Cursor(), 1.0)
    weights = torch.ones(1, device=engine.device)

    def take() -> Tensor:
        how: dict[str, Any] = {"bins_per_step": bins, "clip_norm": CLIP, "learning_rate": rate}
        return train_step(step, model, optimizer, engine, weights=weights, **how).packed[-1:].view(torch.float64)

    return take


def read_late(place: Place) -> Iterator[Finding]:
    """Time of a step that is read at once, over that of one that is read when the next one is queued.

    Steps of one micro-batch in pinned memory, as `trainer.loop` takes them without its log: of so few slots that the
    host, which queues kernel after kernel, takes longer than the GPU, and of so many that it is ahead.
    """
    from accelerate import Accelerator

    from zymogen.trainer.engine.engine import Engine

    model = initial("esm2_60k" if place.dry else "esm2_8m")
    configure(model.encoder, ComputeSettings(compile="off"), place.device, torch.bfloat16)
    settings = OptimizerSettings()
    engine = Engine(Accelerator(cpu=place.dry, mixed_precision="no"), "bf16")
    prepared, optimizer = engine.prepare(model, build_optimizer(parameter_groups(model, settings), settings))
    for slots in (256,) if place.dry else (8192, 65_536):
        yield from _read_late(place, engine, prepared, optimizer, slots)


def _read_late(
    place: Place, engine: "Engine", model: nn.Module, optimizer: torch.optim.Optimizer, slots: int
) -> Iterator[Finding]:
    from data.batches.loader import Step
    from data.order.plan import Cursor
    from zymogen.trainer.step import InFlightSteps, train_step

    lengths = [200] * (slots // 200)
    batch = batch_of([lengths], slots, 1, pinned=not place.dry)
    step = Step((batch,), 1, (0,), sum(lengths), 200 * sum(lengths), Cursor(), 1.0)
    weights, under_way, count = torch.ones(1, device=place.device), [], 2 if place.dry else 20

    def queue() -> "StepResult":
        how: dict[str, Any] = {"bins_per_step": 1, "clip_norm": CLIP, "learning_rate": 1e-4}
        return train_step(step, model, optimizer, engine, weights=weights, **how)

    def read(ahead: InFlightSteps, *, drain: bool) -> None:
        while queued := ahead.pop(drain=drain):
            queued[1].to_host()
            if not place.dry:  # whether the device still has something to do when a step has been read
                under_way.append(not torch.cuda.current_stream(place.device).query())

    def steps(depth: int) -> None:
        ahead = InFlightSteps(depth)
        for _ in range(count):
            ahead.push(step, queue(), 1e-4)
            read(ahead, drain=False)
        read(ahead, drain=True)

    steps(1)
    wait(place.device)
    at_once, late = (median(times) for times in timed(place.device, [partial(steps, n) for n in (0, 1)], 2.0))
    note = f"{1000 * at_once / count:.2f} and {1000 * late / count:.2f} ms a step, eager"
    yield Finding(f"{slots:,} slots a step", at_once / late, note=note, judged=True)
    if under_way:
        under_way.clear()
        steps(1)
        share = sum(under_way) / len(under_way)
        what = f"{slots:,} slots, of steps, read while the next one was under way"
        yield Finding(what, share, note="0.95 where the host is ahead")


def plain_step(
    model: nn.Module, optimizer: torch.optim.Optimizer, batches: Sequence[Batch], rate: float, precision: str
) -> Callable[[], Tensor]:
    """The parts of a step, for a machine without Accelerate; returns the mean loss, on the device.

    Args:
        model: the model itself, in DDP, or cut by FSDP2.
        optimizer: optimizer of its parameters.
        batches: micro-batches of the step.
        rate: learning rate.
        precision: "bf16" or "fp16".
    """
    device = next(model.parameters()).device
    scaler = torch.amp.GradScaler(device.type, enabled=precision == "fp16")
    targets = sum(len(batch.targets[0].slots) for batch in batches)
    for group in optimizer.param_groups:
        group["lr"] = rate

    def take() -> Tensor:
        total = torch.zeros((), device=device)
        for index, batch in enumerate(batches):
            with _accumulating(model, last=index + 1 == len(batches)):
                with torch.autocast(device.type, COMPUTE[precision]):
                    loss = model(batch.to(device)).sum() / targets
                torch.autograd.backward(scaler.scale(loss))
            total += loss.detach()
        scaler.unscale_(optimizer)
        norm = nn.utils.get_total_norm([p.grad for p in model.parameters() if p.grad is not None])
        nn.utils.clip_grads_with_norm_(model.parameters(), CLIP, whole(norm))
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad(set_to_none=True)
        return total

    return take


def whole(tensor: Tensor) -> Tensor:
    """The tensor of all ranks together."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def _accumulating(model: nn.Module, *, last: bool) -> AbstractContextManager[None]:
    if isinstance(model, FSDPModule):
        model.set_is_last_backward(last)
        model.set_requires_all_reduce(last)
    if isinstance(model, DistributedDataParallel) and not last:
        return cast(AbstractContextManager[None], model.no_sync())
    return nullcontext()


def stepper(
    place: Place, precision: str, settings: OptimizerSettings, compute: ComputeSettings, rate: float
) -> tuple[Callable[[], Tensor], str]:
    """A function that takes a step on two micro-batches and returns the mean loss on the device; the step's name."""
    model = initial("esm2_60k" if place.dry else "esm2_8m")
    configure(model.encoder, compute, place.device, COMPUTE[precision])
    model.to(place.device)
    batches = [batch_of([[100, 60, 33], [70, 90]], 256, seed, pinned=not place.dry) for seed in (1, 2)]
    optimizer = build_optimizer(parameter_groups(model, settings), settings)
    if not has("accelerate"):
        return plain_step(model, optimizer, batches, rate, precision), "forward, backward, update"
    from accelerate import Accelerator

    from zymogen.trainer.engine.engine import Engine

    engine = Engine(Accelerator(cpu=place.dry, mixed_precision="no"), precision)
    return program_step(engine, *engine.prepare(model, optimizer), batches, rate), "zymogen.trainer.step.train_step"


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
    losses = []
    for _ in range(20):
        loss = take()
        wait(place.device)
        losses.append(float(loss.sum()))
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
    """Muon as the papers write it; `test_muon.py` compares `trainer.optimizer.muon` with it on a CPU."""
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
