"""The facts about a machine that a proposal rests on.

In: torch, the resources of this process and the launch. Out: `Machine`: plain values, so that a test can make up a
machine. Kept: nothing.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from zymogen.processes.resources import resources

if TYPE_CHECKING:
    from zymogen.trainer.engine.engine import Engine

CPU_FLOPS = 30e9
"""Matrix-product FLOPs a second that a core reaches in training, where nothing was timed: AVX2 at some 3 GHz."""
GPU_FLOPS = 100e12
"""The same of a GPU that the table of `zymogen.trainer.telemetry.peak` does not know."""


@dataclass(frozen=True, slots=True)
class Machine:
    """What trains: processes that are alike."""

    kind: str
    """'cpu' or 'cuda'."""
    name: str
    """Name for readers, such as "2 CPU cores"."""
    processes: int
    """Processes that train together, each with its own share of a step."""
    cores: int
    """CPU cores of one process."""
    memory_bytes: float
    """Memory of one process: of its GPU, or of the host divided among its processes."""
    flops: float
    """Matrix-product FLOPs a second of one process: of a CPU what training reaches, of a GPU its peak."""
    precision: str = "no"
    """'no' (float32), 'bf16' or 'fp16'."""
    engine: str = "single"
    """Name of the engine, as `accelerate_configs/` has it."""
    limits: str = ""
    """Limits of the container or job, below what the host has."""


def describe_machine(processes: int, on_this_host: int, precision: str, engine: str, *, gpu: bool) -> Machine:
    """This machine, as `processes` processes see it of which `on_this_host` are on it.

    Torch is imported only where there is a GPU that may be used, which `gpu` says.
    """
    here = resources()
    cores = here.cores
    each = max(1, cores // on_this_host)
    if gpu and (found := _gpu()) is not None:
        name, memory, flops = found
        words = f"{processes} x {name}" if processes > 1 else name
        return Machine("cuda", words, processes, each, memory, flops, precision, engine, here.limits)
    memory = here.memory_bytes / on_this_host
    words = f"{cores} CPU core{'s' if cores > 1 else ''}" + (f", {processes} processes" if processes > 1 else "")
    return Machine("cpu", words, processes, each, memory, each * CPU_FLOPS, precision, engine, here.limits)


def _gpu() -> tuple[str, float, float] | None:
    """Name, memory in bytes and peak of the first GPU; None without one."""
    if not (Path("/proc/driver/nvidia/version").exists() or Path("/dev/kfd").exists()):
        return None
    import torch

    if not torch.cuda.is_available():
        return None
    from zymogen.trainer.telemetry.peak import known_peak

    about = torch.cuda.get_device_properties(0)
    return about.name, float(about.total_memory), known_peak(about.name, torch.bfloat16) or GPU_FLOPS


def machine_of(engine: "Engine") -> Machine:
    """What trains, as a proposal sees it."""
    gpu = engine.device.type == "cuda"
    return describe_machine(engine.world_size, engine.ranks_per_node, engine.precision, engine.name, gpu=gpu)
