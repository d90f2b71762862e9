"""The machine that `benchmarks.gpu` runs on: its parts, what its torch can do, and how fast it multiplies.

In: nothing. Out: findings; `Place`, which every check takes. Kept: nothing.
"""

import inspect
import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from importlib.util import find_spec
from itertools import pairwise
from statistics import median
from typing import TypeVar

import torch

from benchmarks.gpu.results import Finding, Results
from benchmarks.report import processor
from pretrain.model.attention.choice import choose, find_varlen
from zymogen.trainer.telemetry.peak import known_peak

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class Place:
    """Where checks run, and what earlier checks found."""

    device: torch.device
    results: Results = field(repr=False)

    @property
    def dry(self) -> bool:
        """Whether this only shows that everything runs: shapes shrink, and no speed is judged."""
        return self.device.type != "cuda"

    @property
    def memory_bytes(self) -> int:
        """Memory of the device; for a CPU, a fixed figure that stands for it."""
        return torch.cuda.mem_get_info(self.device)[1] if self.device.type == "cuda" else 8 << 30


def wait(device: torch.device) -> None:
    """Wait until the device has finished all its work."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def timed(device: torch.device, works: Sequence[Callable[[], object]], least: float) -> list[list[float]]:
    """Seconds of each of `works`, in rounds of all of them: three rounds, and more until `least` seconds are over.

    On a GPU this is the time between two events, and the host does not wait within a round: these are the device's
    seconds, including those in which it waits for the host. Nothing is warmed up.
    """
    times: list[list[float]] = [[] for _ in works]
    wait(device)
    started = time.perf_counter()
    while len(times[0]) < 3 or time.perf_counter() < started + least:
        for mine, taken in zip(times, _round(device, works), strict=True):
            mine.append(taken)
    return times


def _round(device: torch.device, works: Sequence[Callable[[], object]]) -> list[float]:
    if device.type == "cuda":
        marks = [torch.cuda.Event(enable_timing=True) for _ in range(len(works) + 1)]  # type: ignore[no-untyped-call]
        marks[0].record()
        for work, mark in zip(works, marks[1:], strict=True):
            work()
            mark.record()
        wait(device)
        return [float(a.elapsed_time(b)) / 1000 for a, b in pairwise(marks)]
    marks_s = [time.perf_counter()]
    for work in works:
        work()
        marks_s.append(time.perf_counter())
    return [b - a for a, b in pairwise(marks_s)]


def peak_memory(place: Place, work: Callable[[], Result]) -> tuple[Result, int]:
    """What `work` returns, and the most bytes that are allocated on the device until it has ended; 0 in a dry run."""
    wait(place.device)
    if not place.dry:
        torch.cuda.reset_peak_memory_stats(place.device)
    result = work()
    wait(place.device)
    return result, 0 if place.dry else torch.cuda.max_memory_allocated(place.device)


def has(package: str) -> bool:
    """Whether it can be imported."""
    try:
        return find_spec(package) is not None
    except ValueError:  # for what a test puts in the package's place
        return False


def facts(device: torch.device) -> dict[str, str]:
    """What a reader of the results must know about the machine."""
    found = {"processor": processor(), "torch": torch.__version__}
    if device.type == "cuda":
        about = torch.cuda.get_device_properties(device)
        found |= {
            "GPU": f"{about.name}, {about.total_memory / 2**30:.1f} GiB, {about.multi_processor_count} multiprocessors",
            "CUDA": str(torch.version.cuda),
        }
    absent = [
        name for name in ("accelerate", "deepspeed", "numba", "safetensors", "transformers", "triton") if not has(name)
    ]
    return found | {"absent": ", ".join(absent) or "nothing"}


def machine(place: Place) -> Iterator[Finding]:
    """The device, and which attention backend is taken for which heads and dtype."""
    yield Finding("device", facts(place.device).get("GPU", processor()), note=f"{os.cpu_count()} processor cores")
    function = find_varlen()
    if function is None:
        yield Finding("varlen_attn", None, note="this torch has none with a scale")
    else:
        yield Finding("varlen_attn", "found", note=str(inspect.signature(function)))
    for dtype in (torch.bfloat16, torch.float16, torch.float32):
        chosen = {head_dim: choose("auto", place.device.type, dtype, head_dim) for head_dim in (16, 24, 32, 64, 12)}
        said = "; ".join(dict.fromkeys(line for _, lines in chosen.values() for line in lines))
        by_width = ", ".join(f"{backend} ({head_dim})" for head_dim, (backend, _) in chosen.items())
        yield Finding(f"attention in {str(dtype)[6:]}, by channels of a head", by_width, note=said)


@lru_cache(maxsize=4)
def product_peak(device: torch.device, size: int) -> float:
    """FLOP/s of the fastest of some products of two ``(size, size)`` bfloat16 matrices of random numbers."""
    a, b = (torch.randn(size, size, device=device).bfloat16() for _ in range(2))
    out = torch.empty_like(a)

    def ten_products() -> None:
        for _ in range(10):
            torch.mm(a, b, out=out)

    ten_products()
    (times,) = timed(device, [ten_products], 0.3)
    return 10 * 2 * size**3 / min(times)


def peak_of(place: Place) -> float:
    """The peak in "share of the peak": from matrices of 8,192, where a GPU's rate no longer grows with the size."""
    return product_peak(place.device, 128 if place.dry else 8192)


def peak(place: Place) -> Iterator[Finding]:
    """The rates of matrix products and of copies, which bound everything else."""
    name = torch.cuda.get_device_name(place.device) if place.device.type == "cuda" else ""
    known = known_peak(name, torch.bfloat16)
    share = f"{peak_of(place) / known:.1%} of the datasheet's {known / 1e12:,.0f}" if known else "no datasheet known"
    yield Finding("bfloat16 product", peak_of(place) / 1e12, "TFLOP/s", share)
    source = torch.randn(1 << (16 if place.dry else 29), device=place.device)
    target = torch.empty_like(source)
    target.copy_(source)
    (times,) = timed(place.device, [lambda: target.copy_(source)], 0.1)
    yield Finding("copy, bytes read and written", 8 * source.numel() / median(times) / 1e12, "TB/s")
