"""Context parallelism on a GPU: ranks that share a batch compute together what one process does, and keep less of it.

In: a place. Out: findings. Kept: the truths, by shape.

Two processes share the GPU, over gloo, because NCCL needs a GPU for each of its ranks. What they exchange goes through
the host's memory, so only the values and the memory of a step mean something, and its time is not measured. A group of
one rank shows that NCCL accepts these collectives as they are called.

Errors are those of `parity`, over those of one process with the same kernel in the same precision.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import lru_cache
from itertools import product
from types import SimpleNamespace
from typing import Any, get_args
from unittest import mock

import torch
import torch.distributed as dist
from torch import Tensor

from benchmarks.gpu.machine import Place, peak_memory
from benchmarks.gpu.parity import (
    HOST,
    Answer,
    Errors,
    answer,
    batch_of,
    errors,
    perturbed,
    shape_of,
    true_answer,
    worst,
)
from benchmarks.gpu.ranks import together
from benchmarks.gpu.results import Bar, Finding
from benchmarks.gpu.speed import fresh, micro_batches
from benchmarks.training import activation_bytes
from data.batches.batch import Batch
from pretrain.model.attention import exchange as exchanges
from pretrain.model.context import ContextShard, Exchange
from pretrain.model.masked_language_model import MaskedLanguageModel
from pretrain.model.presets import PRESETS, Architecture

BAR = Bar(3.0, "lower", "one process's error")
SLOTS = 16_384
"""Slots of the batch whose activations are counted."""


def shared(place: Place) -> Iterator[Finding]:
    """Two ranks: their numbers, then what each of them keeps."""
    yield from together("context:of_a_rank", place, "gloo", world=2)


def on_nccl(place: Place) -> Iterator[Finding]:
    """A group of one rank, whose collectives are the GPU's own."""
    yield from together("context:of_a_rank", place, "nccl")


def of_a_rank(place: Place) -> Iterator[Finding]:
    """Errors of the default group's ranks together; if there are several, activations of the worst of them."""
    with ExitStack() as stack:
        if dist.get_world_size() > 1:
            for patch in _through_the_host():
                stack.enter_context(patch)
        cases: list[tuple[Architecture, Exchange]] = list(product(get_args(Architecture), get_args(Exchange)))
        for architecture, exchange in cases:
            yield _judged(place, architecture, exchange)
        if dist.get_world_size() > 1:
            for architecture, exchange in cases:
                yield _kept(place, architecture, exchange)


def _context(exchange: Exchange) -> ContextShard:
    group = dist.group.WORLD
    assert group is not None
    return ContextShard(dist.get_rank(), dist.get_world_size(), exchange, group)


def _through_the_host() -> Iterator[Any]:
    """Patches that send through the host: gloo has every collective there, but not for a GPU in every torch."""

    def staged(collective: Callable[..., Any]) -> Callable[..., None]:
        def run(received: Tensor, sent: Tensor, group: dist.ProcessGroup) -> None:
            landed = torch.empty_like(received, device=HOST)
            collective(landed, sent.cpu(), group=group)
            received.copy_(landed)

        return run

    to_all = SimpleNamespace(all_to_all_single=staged(dist.all_to_all_single))
    yield mock.patch.object(exchanges, "dist", to_all)
    for name in ("ALL_GATHER", "_REDUCE_SCATTER"):
        yield mock.patch.object(exchanges, name, staged(getattr(exchanges, name)))


# What they compute --------------------------------------------------------------------------------


@lru_cache(maxsize=2)
def layouts(dry: bool) -> dict[str, Batch]:
    """Batches by what makes them hard; shares of two ranks end inside a document in all except the third."""
    found = {
        "three bins": batch_of([[200, 7, 43, 61], [91, 150, 30], [150, 100]], 320),
        "one document": batch_of([[320]], 320, 10),
        "a share of pads": batch_of([[60]], 320, 20),
    }
    if not dry:
        found["long"] = batch_of([[1024, 700, 130, 64], [1500, 513], [2048]], 2048, 30)
    return found


@lru_cache(maxsize=4)
def _alone(device: torch.device, architecture: Architecture, head_dim: int) -> dict[str, tuple[Answer, Errors]]:
    """For each layout the true answer, and the errors of one process."""
    shape, found = shape_of(architecture, head_dim), {}
    model = perturbed(shape, "auto", device)
    for name, batch in layouts(device.type != "cuda").items():
        truth = true_answer(shape, batch, device)
        found[name] = truth, errors(answer(model, batch, torch.bfloat16), truth)
    return found


def _judged(place: Place, architecture: Architecture, exchange: Exchange) -> Finding:
    """The worst error of all layouts over one process's."""
    found = []
    for head_dim in (16,) if place.dry else (16, 64):
        model = perturbed(shape_of(architecture, head_dim), "auto", place.device)
        for name, batch in layouts(place.dry).items():
            truth, alone = _alone(place.device, architecture, head_dim)[name]
            ours = errors(answer(model, batch, torch.bfloat16, _context(exchange)), truth)
            found.append((f"{name}, heads of {head_dim}", ours, alone))
    return worst(f"{architecture}, {exchange}", found, "one process")


# What they keep -----------------------------------------------------------------------------------


def _kept(place: Place, architecture: Architecture, exchange: Exchange) -> Finding:
    """Bytes kept for the backward pass over one process's, and on a GPU the most that a pass takes."""
    preset = f"{architecture}_{'60k' if place.dry else '35m'}"
    torch.manual_seed(0)
    model = fresh(PRESETS[preset], place.device)
    batch = micro_batches(1024 if place.dry else SLOTS, 1, HOST)[0][0]
    alone, context = _bytes(model, batch, place), _context(exchange)
    model.encoder.context = context
    each: list[tuple[int, int]] = [(0, 0)] * context.size
    dist.all_gather_object(each, _bytes(model, batch.share(context.rank, context.size), place), context.group)
    kept, most = (max(column) for column in zip(*each, strict=True))
    note = f"{kept / 2**20:,.1f} of {alone[0] / 2**20:,.1f} MiB, {preset}, {batch.tokens.numel():,} slots"
    if not place.dry:
        note += f"; a pass takes {most / 2**20:,.0f} of {alone[1] / 2**20:,.0f} MiB"
    what = f"{architecture}, {exchange}, activations of one rank"
    return Finding(what, kept / alone[0], "of one process's", note)


def _bytes(model: MaskedLanguageModel, batch: Batch, place: Place) -> tuple[int, int]:
    """Bytes kept for the backward pass, and the most that both passes add to what is allocated before."""
    placed = batch.to(place.device)

    def forward() -> Tensor:
        with torch.autocast(place.device.type, torch.bfloat16):
            loss: Tensor = model(placed).sum()
        return loss

    kept = activation_bytes(forward, model)
    if place.dry:
        return kept, 0
    torch.autograd.backward(forward())  # gradients are allocated from here on
    before = torch.cuda.memory_allocated(place.device)
    _, most = peak_memory(place, lambda: torch.autograd.backward(forward()))
    return kept, most - before
