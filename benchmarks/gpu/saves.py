"""What FSDP2 gathers in bf16, and what a save costs training: on one GPU, in a world of one.

In: a place. Out: findings. Kept: nothing.
"""

import time
from collections.abc import Iterator

import torch
from torch import Tensor, nn

from benchmarks.gpu.engines import DRY, RATE, prepared_by
from benchmarks.gpu.machine import Place, peak_memory
from benchmarks.gpu.parity import batch_of
from benchmarks.gpu.ranks import together
from benchmarks.gpu.results import Bar, Finding
from benchmarks.gpu.step import program_step
from benchmarks.training import initial

PRESET, SLOTS = "esm2_650m", 4096
EXACT = Bar(1.0, "lower", "bytes of the state; of the weights that autocast rounds")
ROUNDED_BY_TORCH = 2
"""The base of the powers to which torch's allocator of pinned memory rounds a tensor up."""


def save(place: Place) -> Iterator[Finding]:
    """In a process of its own."""
    yield from together("saves:of_a_rank", place, "nccl")


def of_a_rank(place: Place) -> Iterator[Finding]:
    """Types of what the layers compute with, then bytes and seconds of a save's copy."""
    from zymogen.trainer.checkpoint.writer import StagingBuffer
    from zymogen.trainer.engine.sharding_unit import autocast_weights

    preset, slots = DRY if place.dry else (PRESET, SLOTS)
    engine, model, optimizer = prepared_by("FSDP2", initial(preset).to(place.device))
    batches = [batch_of([[slots // 4] * 4], slots, index).to(place.device) for index in range(2)]
    seen: dict[torch.dtype, int] = {}

    def note(module: nn.Module, *_: object) -> None:
        weight: Tensor = module.weight  # type: ignore[assignment]
        seen[weight.dtype] = seen.get(weight.dtype, 0) + weight.numel()

    chosen = set(autocast_weights(model))
    maps = [module for module in model.modules() if getattr(module, "weight", None) in chosen]
    handles = [module.register_forward_pre_hook(note) for module in maps]
    take = program_step(engine, model, optimizer, batches, RATE)
    _, peak_bytes = peak_memory(place, take)
    for handle in handles:
        handle.remove()
    share = sum(seen.values()) / max(1, seen.get(torch.bfloat16, 0))
    peak = f"most memory of the step {peak_bytes / 2**30:.3g} GiB" if peak_bytes else preset
    yield Finding("weights over those in bfloat16", share, note=f"FSDP2, {preset}; {peak}", judged=True)

    state, staging = engine.named_state(model, optimizer), StagingBuffer()
    pieces = state.pieces()
    stored = sum(4 * (piece.stop - piece.start) for piece in pieces)
    began = time.perf_counter()
    staging.make_ready(pieces)
    made_s = time.perf_counter() - began
    staged = staging.stage(state)
    rounded = sum(ROUNDED_BY_TORCH ** (4 * (p.stop - p.start) - 1).bit_length() for p in pieces)
    pinned = staging._flat.is_pinned() if not place.dry else False
    assert pinned or place.dry, "the buffer is not pinned"
    yield Finding(
        "pinned over stored bytes",
        staging._flat.untyped_storage().nbytes() / stored,
        note=f"{stored / 1e9:.3g} GB; torch's allocator would take {rounded / 1e9:.3g}; made in {made_s:.2g} s",
        judged=True,
    )
    began = time.perf_counter()
    staged = staging.stage(state)
    seconds = time.perf_counter() - began
    rate = staged.num_bytes / seconds / 1e9
    yield Finding("the stall of a save", 1000 * seconds, "ms", f"{rate:.3g} GB/s, the copy alone")
