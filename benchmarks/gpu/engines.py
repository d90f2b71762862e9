"""Engines on one GPU: whether they end where a single process does, with NCCL and a world of one, and what they cost.

In: a place, an engine. Out: findings. Kept: nothing.

The yardstick is that of `benchmarks.engines`: how far one process ends from itself when only the grouping of a step's
bins into forward passes differs, which is rounding. Distances are norms over all weights, because the largest single
difference is that of weights whose gradient is only rounding, such as a bias of keys, and Adam moves these as fast as
any other.

FSDP2 and ZeRO run as `zymogen.trainer.engine` sets them up, through `zymogen.trainer.step.train_step`, where Accelerate
can be imported; without it FSDP2 is made from torch's parts in the same way. DDP always is, because Accelerate does not
wrap a model in a world of one.
"""

import gc
import os
from collections.abc import Callable, Iterator, Sequence
from statistics import median
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.nn.parallel import DistributedDataParallel

from benchmarks.gpu.machine import Place, has, peak_memory, timed
from benchmarks.gpu.parity import batch_of
from benchmarks.gpu.ranks import together
from benchmarks.gpu.results import Bar, Finding
from benchmarks.gpu.step import CLIP, plain_step, program_step, whole
from benchmarks.proteins import lengths
from benchmarks.training import initial
from data.batches.batch import Batch
from data.order.plan import SPECIAL_TOKENS
from pretrain.model.masked_language_model import MaskedLanguageModel
from zymogen.trainer.optimizer.kinds import build_optimizer, parameter_groups
from zymogen.trainer.optimizer.settings import OptimizerSettings

if TYPE_CHECKING:
    from zymogen.trainer.engine.engine import Engine

BAR = Bar(3.0, "lower", "one process, bins regrouped")
Kind = Literal["DDP", "FSDP2", "ZeRO-2", "ZeRO-3"]
PRESET, BINS, SLOTS = "esm2_35m", 4, 8192
"""The model, bins of a step, and slots of a bin: this takes 7 of an H200's 139 GiB."""
DRY = "esm2_60k", 512
STEPS, RATE = 5, 1e-3
OPTIMIZER = OptimizerSettings(eps=1e-6)
VARIABLES: dict[str, dict[str, str]] = {
    "FSDP2": {
        "ACCELERATE_USE_FSDP": "true",
        "FSDP_VERSION": "2",
        "FSDP_AUTO_WRAP_POLICY": "TRANSFORMER_BASED_WRAP",
        "FSDP_TRANSFORMER_CLS_TO_WRAP": "Layer",
        "FSDP_RESHARD_AFTER_FORWARD": "true",
    },
    "ZeRO-2": {"ACCELERATE_USE_DEEPSPEED": "true", "ACCELERATE_DEEPSPEED_ZERO_STAGE": "2"},
    "ZeRO-3": {"ACCELERATE_USE_DEEPSPEED": "true", "ACCELERATE_DEEPSPEED_ZERO_STAGE": "3"},
}
"""The variables that `accelerate launch` gives a process for the files in `accelerate_configs`."""

Weights = dict[str, Tensor]


class Way(NamedTuple):
    """A model with a way of training it."""

    take: Callable[[], object]
    """One step."""
    weights: Callable[[], Weights]
    """Whole, in copies on the host, by name."""
    name: str


class Trained(NamedTuple):
    """The results of a way."""

    weights: Weights
    """After `STEPS` steps."""
    step_s: float
    peak_bytes: int


def engine(place: Place, kind: Kind) -> Iterator[Finding]:
    """One engine, in a process of its own."""
    yield from together("engines:of_a_rank", place, "nccl", kind=kind)


def of_a_rank(place: Place, kind: Kind) -> Iterator[Finding]:
    """Distance of the weights from a plain process's, then time and memory next to those of that process."""
    lengths_of_bins, slots = _bins(place.dry)
    batches = [_placed(lengths_of_bins, slots, first, 2, place) for first in range(0, BINS, 2)]
    regrouped = [_placed(lengths_of_bins, slots, first, 1, place) for first in range(BINS)]
    plain = _trained(_direct(place, batches), place)
    _let_go(place)
    noise = _distance(plain.weights, _trained(_direct(place, regrouped), place, timing=False).weights)
    moved = _distance(plain.weights, _direct(place, batches).weights())
    _let_go(place)
    way = (_launched if kind != "DDP" and has("accelerate") else _direct)(place, batches, kind)
    found = _trained(way, place)
    off = _distance(plain.weights, found.weights)
    note = f"{off:.1e} from one process after {STEPS} steps, regrouping {noise:.1e}, weights moved by {moved:.1e}"
    yield Finding("", off / noise, note=f"{note}; {way.name}", judged=True)
    model = f"{DRY[0] if place.dry else PRESET}, {BINS * slots:,} slots in {len(batches)} micro-batches, eager"
    yield Finding("a step", 1000 * found.step_s, "ms", f"plain {1000 * plain.step_s:.3g}; {model}")
    if not place.dry:
        memory = f"plain {plain.peak_bytes / 2**30:.3g}"
        yield Finding("most memory", found.peak_bytes / 2**30, "GiB", memory)


def _trained(way: Way, place: Place, *, timing: bool = True) -> Trained:
    for _ in range(STEPS):
        way.take()
    weights = way.weights()
    if not timing:
        return Trained(weights, 0.0, 0)
    (times,), peak_bytes = peak_memory(place, lambda: timed(place.device, [way.take], 0.1 if place.dry else 1.0))
    return Trained(weights, median(times), peak_bytes)


def _let_go(place: Place) -> None:
    """Free memory, before what is trained next is measured."""
    gc.collect()
    if not place.dry:
        torch.cuda.empty_cache()


def _distance(a: Weights, b: Weights) -> float:
    assert a.keys() == b.keys(), f"not the same weights: {sorted(a.keys() ^ b.keys())[:4]}"
    return float(torch.stack([(a[name].double() - b[name].double()).norm() for name in a]).norm())


def _bins(dry: bool) -> tuple[list[list[int]], int]:
    """Tokens of the proteins of each bin, log-normal, as they come; slots of a bin."""
    slots = DRY[1] if dry else SLOTS
    coming = iter(np.minimum(lengths(BINS * slots // 16) + SPECIAL_TOKENS, min(1024, slots)).tolist())
    found: list[list[int]] = []
    waiting = next(coming)
    for _ in range(BINS):
        found.append([])
        while sum(found[-1]) + waiting <= slots:
            found[-1].append(waiting)
            waiting = next(coming)
    return found, slots


def _placed(bins: Sequence[Sequence[int]], slots: int, first: int, count: int, place: Place) -> Batch:
    return batch_of(bins[first : first + count], slots, first).to(place.device)


def _model(place: Place) -> MaskedLanguageModel:
    return initial(DRY[0] if place.dry else PRESET).to(place.device)


# Torch's parts ------------------------------------------------------------------------------------


def _direct(place: Place, batches: Sequence[Batch], kind: Kind | None = None) -> Way:
    """A single process, DDP or FSDP2, with the step of `zymogen.trainer.step` in a few lines."""
    model = _model(place)
    wrapped: nn.Module = model
    if kind == "DDP":
        wrapped = ddp = DistributedDataParallel(model, device_ids=None if place.dry else [0])
        ddp.register_comm_hook(None, lambda _, bucket: _summed(bucket))
    elif kind == "FSDP2":
        _cut(model, place.device)
    take = plain_step(wrapped, build_optimizer(parameter_groups(model, OPTIMIZER), OPTIMIZER), batches, RATE, "bf16")
    name = "torch's parts, as the engine puts them together"
    return Way(take, lambda: _copied(dict(model.named_parameters())), name)


def _copied(parameters: Weights) -> Weights:
    return {name: whole(parameter).detach().to("cpu", copy=True) for name, parameter in parameters.items()}


def _summed(bucket: Any) -> torch.futures.Future[Tensor]:
    future: torch.futures.Future[list[Tensor]] = dist.all_reduce(bucket.buffer(), async_op=True).get_future()
    return future.then(lambda reduced: reduced.value()[0])


def _cut(model: MaskedLanguageModel, device: torch.device) -> None:
    mesh = init_device_mesh(device.type, (dist.get_world_size(),))
    for layer in model.encoder.layers:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.set_gradient_divide_factor(1.0)
            module.set_force_sum_reduction_for_comms(True)


# The engines --------------------------------------------------------------------------------------


def prepared_by(kind: Kind, model: nn.Module) -> tuple["Engine", nn.Module, Any]:
    """An engine as `zymogen.trainer.engine.launch` builds it, the model and its optimizer as it runs them."""
    os.environ.update(VARIABLES[kind])
    from accelerate import Accelerator

    from zymogen.trainer.engine.engine import Engine
    from zymogen.trainer.engine.launch import sharding_on_a_cpu

    of_engine: type[Engine]
    if kind == "FSDP2":
        from zymogen.trainer.engine.fully_sharded import FullyShardedEngine as of_engine
    else:
        from zymogen.trainer.engine.zero import ZeroEngine as of_engine

    with sharding_on_a_cpu("FSDP" if kind == "FSDP2" else "DEEPSPEED"):
        accelerator = Accelerator(mixed_precision="no", **of_engine.plugins(CLIP))
    running = of_engine(accelerator, "bf16")
    if accelerator.distributed_type not in of_engine.distributed_types:
        raise RuntimeError(f"asked for {kind}, and Accelerate set up {accelerator.distributed_type.value}")
    return running, *running.prepare(model, build_optimizer(parameter_groups(model, OPTIMIZER), OPTIMIZER))


def _launched(place: Place, batches: Sequence[Batch], kind: Kind) -> Way:
    running, prepared, optimizer = prepared_by(kind, _model(place))
    state = running.named_state(prepared, optimizer)

    def weights() -> Weights:
        pieces = [piece for piece in state.pieces() if piece.key == "param"]  # whole ones, in a world of one
        return {piece.name: piece.live.to("cpu", copy=True).view(state.shape(piece.name)) for piece in pieces}

    take = program_step(running, prepared, optimizer, batches, RATE)
    return Way(take, weights, f"zymogen.trainer.engine's {running.name}, zymogen.trainer.step.train_step")
