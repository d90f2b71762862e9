"""The checks of `benchmarks.gpu`, in the order in which they run: what matters most comes first."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import get_args

from benchmarks.gpu import context, engines, machine, parity, saves, speed, step
from benchmarks.gpu.machine import Place
from benchmarks.gpu.results import Bar, Finding
from benchmarks.gpu.worker import Check, OnCpu
from pretrain.model.presets import Architecture

ARCHITECTURES: tuple[Architecture, ...] = get_args(Architecture)
TRANSFORMERS = ("transformers", "safetensors")
ALL_ZERO = Bar(1.0, "higher", "all parameters: their gradient is there, and 0")
FASTER = Bar(2.0, "higher", "EsmForMaskedLM, batches as they come")
LEARNS = Bar(0.95, "lower", "the loss 20 steps before")
LOGITS = Bar(1e-5, "lower", "the largest logit")
GAINS = Bar(1.0, "higher", "a step that is read at once")
WAITS = Bar(1.0, "higher", "1 where nothing waits")


def _speed(preset: str, seconds: float, share: float | None = None) -> Check:
    run = partial(speed.speed, preset=preset, profiled=preset in ("esm2_8m", "esm2_650m"))
    bar = Bar(share, "higher", "the rate of a bfloat16 product") if share else None
    return Check(f"speed {preset}", run, seconds, bar, "run" if preset == "esm2_8m" else "never")


def _against_transformers(preset: str, seconds: float) -> Check:
    run = partial(speed.against_transformers, preset=preset)
    return Check(f"times HF {preset}", run, seconds, FASTER, "run" if preset == "esm2_8m" else "never", TRANSFORMERS)


def _judged(name: str, run: Callable[[Place], Iterator[Finding]], seconds: float, bar: Bar, *needs: str) -> Check:
    """A check of numbers, which a CPU computes as well."""
    return Check(name, run, seconds, bar, "judged", needs)


def _parity(architecture: Architecture, head_dim: int) -> Check:
    run = partial(parity.backends, architecture=architecture, head_dim=head_dim)
    on_cpu: OnCpu = "judged" if head_dim == 16 else "never"
    return Check(f"parity {architecture}, heads of {head_dim}", run, 10, parity.BAR, on_cpu)


def _logits(name: str, preset: str, dry_preset: str) -> Check:
    def run(place: Place) -> Iterator[Finding]:
        return parity.transformers_logits(place, dry_preset if place.dry else preset)

    return _judged(f"logits of {name}", run, 12, LOGITS, *TRANSFORMERS)


def _muon(dtype: str, bar: float) -> Check:
    return _judged(
        f"Muon in {dtype}", partial(step.muon, dtype=dtype), 6, Bar(bar, "lower", "the way that float64 goes")
    )


def _engine(kind: engines.Kind, seconds: float, *needs: str) -> Check:
    return _judged(f"{kind}, one rank", partial(engines.engine, kind=kind), seconds, engines.BAR, *needs)


SPEEDS = (
    _speed("esm2_8m", 45, 0.2),
    _speed("esm2_650m", 55, 0.5),
    _speed("esm2_150m", 50, 0.4),
    _speed("esm2_3b", 60, 0.5),
    _speed("modern_300m", 50),
    _speed("esm2_35m", 45, 0.3),
)
"""The sizes that users ask about, within the time of one call."""
CHECKS: tuple[Check, ...] = (
    Check("machine", machine.machine, 3, on_cpu="run"),
    Check("peak", machine.peak, 5, on_cpu="run"),
    *(_parity(architecture, head_dim) for head_dim in (16, 64, 24, 32) for architecture in ARCHITECTURES),
    *(
        _judged(f"{name}, a batch of pads alone", partial(parity.without_documents, architecture=name), 5, ALL_ZERO)
        for name in ARCHITECTURES
    ),
    Check("no waiting in a step", step.no_wait, 10, WAITS, on_cpu="run"),
    Check("reading late", step.read_late, 10, GAINS, on_cpu="run", needs=("accelerate",)),
    _judged("float16 learns", step.float16, 8, LEARNS),
    *SPEEDS,
    _judged("compiled esm2", partial(parity.compiled, architecture="esm2"), 40, parity.BAR),
    _logits("EsmForMaskedLM", "esm2_8m", "esm2_60k"),
    _logits("EsmcForMaskedLM", "modern_8m", "modern_60k"),
    _muon("float32", 1e-5),
    _muon("bfloat16", 3e-2),
    *(
        _judged(f"checkpointing {name}", partial(parity.checkpointing, architecture=name), 8, parity.BAR)
        for name in ARCHITECTURES
    ),
    _judged("context parallelism, two ranks", context.shared, 40, context.BAR),
    _judged("context parallelism, one rank on NCCL", context.on_nccl, 25, context.BAR),
    _engine("DDP", 30),
    _engine("FSDP2", 30),
    _engine("ZeRO-2", 40, "accelerate", "deepspeed"),
    _engine("ZeRO-3", 40, "accelerate", "deepspeed"),
    _judged("bf16 gathers and a save", saves.save, 40, saves.EXACT, "accelerate"),
    _against_transformers("esm2_8m", 15),
    _against_transformers("esm2_150m", 15),
    _against_transformers("esm2_650m", 25),
    Check("attention, with room for documents", partial(speed.empty_documents, preset="esm2_8m"), 5),
    Check("memory esm2_650m", partial(speed.memory, preset="esm2_650m"), 20, on_cpu="run"),
    Check("compiled modern", partial(parity.compiled, architecture="modern"), 40, parity.BAR),
    _speed("modern_600m", 50),
    _speed("modern_150m", 50),
    Check("no waiting in a compiled step", step.no_wait_compiled, 40, WAITS),
    _against_transformers("esm2_35m", 15),
    _against_transformers("esm2_3b", 40),
)
