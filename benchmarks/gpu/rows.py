"""The checks of `benchmarks.gpu`, in the order in which they run: what matters most comes first."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import get_args

from benchmarks.gpu import context, engines, machine, parity, speed, step
from benchmarks.gpu.machine import Place
from benchmarks.gpu.results import Bar, Finding
from benchmarks.gpu.worker import Check, OnCpu
from pretrain.model.presets import Architecture

ARCHITECTURES: tuple[Architecture, ...] = get_args(Architecture)
WAITS = Bar(1.0, "higher", "1 where nothing waits")


def _speed(preset: str, seconds: float, share: float | None = None) -> Check:
    return Check(
        name=f"speed {preset}",
        run=partial(speed.speed, preset=preset, profiled=preset in ("esm2_8m", "esm2_650m")),
        seconds=seconds,
        bar=Bar(share, "higher", "the rate of a bfloat16 product") if share else None,
        on_cpu="run" if preset == "esm2_8m" else "never",
    )


def _against_transformers(preset: str, seconds: float) -> Check:
    return Check(
        name=f"times HF {preset}",
        run=partial(speed.against_transformers, preset=preset),
        seconds=seconds,
        bar=Bar(2.0, "higher", "EsmForMaskedLM, batches as they come"),
        on_cpu="run" if preset == "esm2_8m" else "never",
        needs=("transformers", "safetensors"),
    )


def _logits(name: str, preset: str, dry_preset: str) -> Check:
    return Check(
        name=f"logits of {name}",
        run=lambda place: parity.transformers_logits(place, dry_preset if place.dry else preset),
        seconds=12,
        bar=Bar(1e-5, "lower", "the largest logit"),
        on_cpu="judged",
        needs=("transformers", "safetensors"),
    )


def _parity(name: str, run: Callable[[Place], Iterator[Finding]], seconds: float, *, dries: bool = True) -> Check:
    on_cpu: OnCpu = "judged" if dries else "never"
    return Check(name=name, run=run, seconds=seconds, bar=parity.BAR, on_cpu=on_cpu)


def _muon(dtype: str, bar: float) -> Check:
    return Check(
        name=f"Muon in {dtype}",
        run=partial(step.muon, dtype=dtype),
        seconds=6,
        bar=Bar(bar, "lower", "the way that float64 goes"),
        on_cpu="judged",
    )


def _engine(kind: engines.Kind, seconds: float, *needs: str) -> Check:
    return Check(
        name=f"{kind}, one rank",
        run=partial(engines.engine, kind=kind),
        seconds=seconds,
        bar=engines.BAR,
        on_cpu="judged",
        needs=needs,
    )


def _context(name: str, run: Callable[[Place], Iterator[Finding]], seconds: float) -> Check:
    return Check(name=f"context parallelism, {name}", run=run, seconds=seconds, bar=context.BAR, on_cpu="judged")


CHECKS: tuple[Check, ...] = (
    Check(name="machine", run=machine.machine, seconds=3, on_cpu="run"),
    Check(name="peak", run=machine.peak, seconds=5, on_cpu="run"),
    *(
        _parity(
            f"parity {architecture}, heads of {head_dim}",
            partial(parity.backends, architecture=architecture, head_dim=head_dim),
            10,
            dries=head_dim == 16,
        )
        for head_dim in (16, 64, 24, 32)
        for architecture in ARCHITECTURES
    ),
    *(
        Check(
            name=f"{architecture}, a batch of pads alone",
            run=partial(parity.without_documents, architecture=architecture),
            seconds=5,
            bar=Bar(1.0, "higher", "all parameters: their gradient is there, and 0"),
            on_cpu="judged",
        )
        for architecture in ARCHITECTURES
    ),
    Check(name="no waiting in a step", run=step.no_wait, seconds=10, bar=WAITS, on_cpu="run"),
    Check(
        name="float16 learns",
        run=step.float16,
        seconds=8,
        bar=Bar(0.95, "lower", "the loss 20 steps before"),
        on_cpu="judged",
    ),
    _speed("esm2_8m", 45, 0.2),
    _parity("compiled esm2", partial(parity.compiled, architecture="esm2"), 40),
    _speed("esm2_650m", 55, 0.5),
    _speed("esm2_150m", 50, 0.4),
    _logits("EsmForMaskedLM", "esm2_8m", "esm2_60k"),
    _logits("EsmcForMaskedLM", "modern_8m", "modern_60k"),
    _muon("float32", 1e-5),
    _muon("bfloat16", 3e-2),
    *(_parity(f"checkpointing {name}", partial(parity.checkpointing, architecture=name), 8) for name in ARCHITECTURES),
    _context("two ranks", context.shared, 40),
    _context("one rank on NCCL", context.on_nccl, 25),
    _engine("DDP", 30),
    _engine("FSDP2", 30),
    _engine("ZeRO-2", 40, "accelerate", "deepspeed"),
    _engine("ZeRO-3", 40, "accelerate", "deepspeed"),
    _speed("esm2_35m", 45, 0.3),
    _speed("esm2_3b", 60, 0.5),
    _against_transformers("esm2_8m", 15),
    _against_transformers("esm2_150m", 15),
    _against_transformers("esm2_650m", 25),
    Check(
        name="attention, with room for documents",
        run=partial(speed.empty_documents, preset="esm2_8m"),
        seconds=5,
    ),
    Check(
        name="memory esm2_650m",
        run=partial(speed.memory, preset="esm2_650m"),
        seconds=20,
        on_cpu="run",
    ),
    _speed("modern_150m", 50),
    _parity("compiled modern", partial(parity.compiled, architecture="modern"), 40, dries=False),
    _speed("modern_600m", 50),
    Check(name="no waiting in a compiled step", run=step.no_wait_compiled, seconds=40, bar=WAITS),
    _against_transformers("esm2_35m", 15),
    _against_transformers("esm2_3b", 40),
)
