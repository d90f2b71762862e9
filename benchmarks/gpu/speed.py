"""Training speed and memory on a GPU, and the kernels that time is spent in.

In: a place, a preset. Out: findings, tables. Kept: nothing.

Proteins of log-normal lengths, mean 280, cropped at 1,024 tokens; float32 parameters, bfloat16 autocast, fused AdamW,
one micro-batch a step. Ours are packed into bins of one size. Loading data is not measured: all batches are on the
device before. In a dry run one small model stands for all, and is not compiled.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from statistics import median
from typing import NamedTuple

import numpy as np
import torch
from torch.profiler import ProfilerActivity, profile

from benchmarks.gpu.machine import Place, peak_memory, peak_of, timed, wait
from benchmarks.gpu.results import Finding, Table
from benchmarks.proteins import Work, batches, draw, lengths, packed, representative, work
from benchmarks.training import Side, activation_bytes, autocast, copied, on_device, side, train
from data.batches.batch import Batch
from data.order.plan import SPECIAL_TOKENS
from pretrain.model.attention.layout import layout_of
from pretrain.model.attention.sdpa import varlen
from pretrain.model.compilation import compile_layers
from pretrain.model.encoder import Checkpointing
from pretrain.model.masked_language_model import MaskedLanguageModel
from pretrain.model.memory import training_flops
from pretrain.model.presets import PRESETS, EsmShape
from zymogen.trainer.telemetry.peak import known_peak

CROP = 1024
GPU_BYTES = 139 * 2**30
"""Memory that the sizes below are for; a smaller GPU gets proportionally fewer slots."""
SLOTS = {
    "esm2_8m": 65_536,
    "esm2_35m": 65_536,
    "esm2_150m": 65_536,
    "esm2_650m": 32_768,
    "esm2_3b": 12_288,
    "modern_150m": 65_536,
    "modern_300m": 49_152,
    "modern_600m": 32_768,
}
"""Slots of a micro-batch. At 40 bytes a slot, channel and layer kept for the backward pass, and 18 a parameter, ESM-2's
take 5, 14, 50, 62 and 88 of 139 GiB; if memory runs out, half as many are tried."""
PADDED = {"esm2_8m": 128, "esm2_35m": 128, "esm2_150m": 32, "esm2_650m": 16, "esm2_3b": 8}
"""Proteins of one of transformers' batches."""
PADDED_BATCHES = 4
DRY = "esm2_60k"


def shape_and_slots(place: Place, preset: str) -> tuple[EsmShape, int]:
    """The model's shape, and the slots of a micro-batch."""
    if place.dry:
        return PRESETS[DRY], CROP
    share = min(1.0, place.memory_bytes / GPU_BYTES)
    return PRESETS[preset], max(4096, int(SLOTS[preset] * share) // 1024 * 1024)


def fresh(shape: EsmShape, device: torch.device) -> MaskedLanguageModel:
    """A model with random weights made where they stay: `initialise` draws on the host, half a minute for 3B."""
    with torch.device(device):
        model = MaskedLanguageModel(shape)
        for parameter in model.parameters():
            if parameter.ndim == 2:
                torch.nn.init.normal_(parameter, std=0.02)
    return model


def micro_batches(slots: int, count: int, device: torch.device, crop: int = CROP) -> list[tuple[Batch, Work]]:
    """`count` packed batches of about `slots` slots, all of one size, and the work in each."""
    mean = float(np.minimum(lengths(100_000) + SPECIAL_TOKENS, crop).mean())
    num_tokens = np.minimum(lengths(round(count * slots / mean), seed=1) + SPECIAL_TOKENS, crop)
    found = []
    for batch in packed(draw(num_tokens), slots):
        documents = [end - start for start, end in batch.spans]
        asked = Work(sum(documents), sum(n * n for n in documents), len(batch.targets[0].slots))
        found.append((batch.to(device), asked))
    return found


class Speed(NamedTuple):
    """The speed of training; medians over steps."""

    tokens: float
    """Real tokens a second."""
    flops: float
    """Needed FLOPs a second."""
    step_s: float
    warm_up_s: float
    """The first step of each batch, compilation included."""
    peak_bytes: int


def measured(mine: Side, shape: EsmShape, some: Sequence[tuple[Batch, Work]], place: Place, least: float) -> Speed:
    """Train for at least `least` seconds, after one step of each batch."""
    wait(place.device)
    started = time.perf_counter()
    for batch, _ in some:
        train(mine, [batch], "bf16", place.device)
    wait(place.device)
    warm_up_s = time.perf_counter() - started
    steps = [partial(train, mine, [batch], "bf16", place.device) for batch, _ in some]
    times, peak_bytes = peak_memory(place, partial(timed, place.device, steps, least))
    speeds = [
        (asked.tokens / s, training_flops(shape, *asked, pruned=True) / s, s)
        for (_, asked), seconds in zip(some, times, strict=True)
        for s in seconds
    ]
    tokens, flops, step_s = (median(column) for column in zip(*speeds, strict=True))
    return Speed(tokens, flops, step_s, warm_up_s, peak_bytes)


def speed(place: Place, preset: str, *, profiled: bool = False) -> Iterator[Finding | Table]:
    """Eager and compiled speed; judged is the compiled model's share of the peak, because compiling is the default."""
    shape, slots = shape_and_slots(place, preset)
    mine = side(fresh(shape, place.device))
    some, eager = _eager(mine, shape, slots, place)
    used = sum(asked.tokens for _, asked in some) / sum(batch.tokens.numel() for batch, _ in some)
    of = f"{DRY if place.dry else preset}, {some[0][0].tokens.numel():,} slots a step, {used:.1%} of them real"
    yield from _findings("eager", eager, place, of)
    if place.dry:
        yield _kernels(f"{preset}, eager", mine, some[0][0], place)
        yield Finding("MFU, compiled", None, note="a dry run compiles nothing", judged=True)
        return
    loss = _loss(mine, some[0][0], place)
    assert isinstance(mine.model, MaskedLanguageModel)
    compile_layers(mine.model.encoder)
    difference = abs(_loss(mine, some[0][0], place) - loss)
    fast = measured(mine, shape, some, place, 2.0)
    yield from _findings("compiled", fast, place, f"{of}; first loss off eager's by {difference:.1e}")
    share = fast.flops / peak_of(place)
    known = known_peak(torch.cuda.get_device_name(place.device), torch.bfloat16)
    sheet = f"; {fast.flops / known:.3f} of the data sheet's {known / 1e12:,.0f} TFLOP/s" if known else ""
    yield Finding("MFU, compiled", share, note=f"eager {eager.flops / peak_of(place):.3f}{sheet}", judged=True)
    if profiled:
        yield _kernels(f"{preset}, compiled", mine, some[0][0], place)


def _eager(mine: Side, shape: EsmShape, slots: int, place: Place) -> tuple[list[tuple[Batch, Work]], Speed]:
    """Batches that fit, and the speed without compilation."""
    while True:
        some = micro_batches(slots, 4, place.device)
        try:
            return some, measured(mine, shape, some, place, 0.2 if place.dry else 2.0)
        except torch.OutOfMemoryError:
            if slots < 4096:
                raise
        slots //= 2
        mine.optimizer.zero_grad(set_to_none=True)
        torch.cuda.empty_cache()


def _loss(mine: Side, batch: Batch, place: Place) -> float:
    with autocast("bf16", place.device):  # with gradients, as without them a layer is compiled once more
        return float(mine.mean_loss(batch).detach())


def _findings(how: str, found: Speed, place: Place, note: str) -> Iterator[Finding]:
    yield Finding(f"{how}, real tokens/s", found.tokens, note=note)
    warm_up = f"after {found.warm_up_s:.1f} s, in which each batch was seen once"
    yield Finding(f"{how}, a step", 1000 * found.step_s, "ms", warm_up)
    if not place.dry:
        yield Finding(f"{how}, most memory", found.peak_bytes / 2**30, "GiB")


def against_transformers(place: Place, preset: str) -> Iterator[Finding]:
    """`EsmForMaskedLM`, SDPA, padded batches as they come; the ratio is that of our speed, measured before, to it."""
    shape, _ = shape_and_slots(place, preset)
    proteins, count = (3, 2) if place.dry else (PADDED[preset], PADDED_BATCHES)
    chosen = representative(batches(proteins, 128 if place.dry else CROP, 0, grouped=False), count)
    theirs = copied(fresh(shape, place.device), place.device)
    padded = on_device(chosen, place.device)
    longest = max(padded, key=lambda batch: batch["input_ids"].numel())
    for batch in (longest, *padded):
        train(theirs, [batch], "bf16", place.device)
    times = timed(place.device, [partial(train, theirs, padded, "bf16", place.device)], 0.2 if place.dry else 3.0)
    real = sum(work(documents).tokens for documents in chosen)
    rate = real / median(times[0])
    slots = sum(batch["input_ids"].numel() for batch in padded)
    yield Finding("HF, real tokens/s", rate, note=f"{proteins} proteins a batch, {real / slots:.1%} of slots real")
    if not place.dry:
        yield Finding("HF, most memory", torch.cuda.max_memory_allocated(place.device) / 2**30, "GiB")
    for how in ("compiled", "eager"):
        ours = place.results.value(f"speed {preset}: {how}, real tokens/s")
        if ours is not None:
            yield Finding("", ours / rate, note=f"ours {how}: {ours:,.0f}", judged=True)
            return
    yield Finding("", None, note=f"needs the row of speed {preset}", judged=True)


def memory(place: Place, preset: str) -> Iterator[Finding]:
    """Slots that fit into a step of one micro-batch, computed from the bytes that two sizes of it take; eager."""
    shape, slots = shape_and_slots(place, preset)
    mine = side(fresh(shape, place.device))
    assert isinstance(mine.model, MaskedLanguageModel)
    encoder = mine.model.encoder
    sizes = [micro_batches(n, 1, place.device, crop=512)[0][0] for n in (slots // 4, slots // 2)]
    train(mine, sizes[:1], "bf16", place.device)  # AdamW's state is allocated from here on
    modes: tuple[Checkpointing, ...] = ("none", "selective", "layer")
    for mode in modes:
        encoder.checkpointing = mode
        small, large = (_step_bytes(mine, batch, place) for batch in sizes)
        numbers = [batch.tokens.numel() for batch in sizes]
        per_slot = (large - small) / (numbers[1] - numbers[0])
        fixed = small - per_slot * numbers[0]
        fits = (0.95 * place.memory_bytes - fixed) / per_slot
        note = f"{per_slot:,.0f} bytes a slot and {fixed / 2**30:.1f} GiB, into 95% of {place.memory_bytes / 2**30:.0f}"
        yield Finding(f"checkpointing {mode}, most slots", fits, note=note)


def _step_bytes(mine: Side, batch: Batch, place: Place) -> int:
    if place.dry:
        return activation_bytes(partial(mine.mean_loss, batch), mine.model)
    train(mine, [batch], "bf16", place.device)
    return peak_memory(place, partial(train, mine, [batch], "bf16", place.device))[1]


def empty_documents(place: Place, preset: str) -> Iterator[Finding]:
    """Time of a layer's attention, forward and backward, with a batch's boundaries over that with its layout's.

    The former have room for a document in every eight slots, and most of these documents are empty.
    """
    shape, slots = shape_and_slots(place, preset)
    batch = micro_batches(slots, 1, place.device)[0][0]
    layout = layout_of(batch, "varlen")
    query, key, value, gradient = _attended(batch, shape)

    def attention(boundaries: torch.Tensor) -> Callable[[], object]:
        placed = layout._replace(boundaries=boundaries, query_boundaries=boundaries)

        def run() -> None:
            torch.autograd.grad(varlen(query, key, value, placed), (query, key, value), gradient)

        return run

    assert layout.boundaries is not None
    sides = batch.cu_seqlens, layout.boundaries
    works = [attention(boundaries) for boundaries in sides]
    for run in works:
        run()
    times = timed(place.device, works, 0.3)
    room, used = (1000 * median(seconds) for seconds in times)
    counts = [len(boundaries) - 1 for boundaries in sides]
    yield Finding("", room / used, "times", f"{room:.2f} ms of {counts[0]} documents, {used:.2f} of {counts[1]}")


def _attended(batch: Batch, shape: EsmShape) -> tuple[torch.Tensor, ...]:
    """Random queries, keys and values of a layer for a batch, and a gradient of what they gather, in bfloat16."""
    size = (batch.tokens.numel(), shape.heads, shape.head_dim)
    made = [torch.randn(size, device=batch.tokens.device, dtype=torch.bfloat16) for _ in range(4)]
    return (*(each.requires_grad_() for each in made[:3]), made[3])


def _kernels(title: str, mine: Side, batch: Batch, place: Place) -> Table:
    """The kernels that a step spends most of the device's time in."""
    activity = ProfilerActivity.CPU if place.dry else ProfilerActivity.CUDA
    train(mine, [batch], "bf16", place.device)
    wait(place.device)
    started = time.perf_counter()
    with profile(activities=[activity]) as found:
        train(mine, [batch], "bf16", place.device)
        wait(place.device)
    elapsed = time.perf_counter() - started
    which = "self_cpu_time_total" if place.dry else "self_device_time_total"
    # An annotation spans kernels, which would be counted twice.
    events = [event for event in found.key_averages() if not getattr(event, "is_user_annotation", False)]
    spent = sorted(((getattr(event, which), event) for event in events), key=lambda pair: -pair[0])
    total = sum(microseconds for microseconds, _ in spent) or 1.0
    rows = [
        (event.key[:100], f"{microseconds / total:.1%}", f"{microseconds / 1000:.3g}", str(event.count))
        for microseconds, event in spent[:8]
    ]
    rows.append((f"all {len(spent)}", "100%", f"{total / 1000:.3g}", str(sum(event.count for _, event in spent))))
    title = f"{title}: where one step's {total / 1000:.3g} ms go (it took {1000 * elapsed:.3g} under the profiler)"
    return Table(title, ("kernel", "share", "ms", "calls"), tuple(rows))
