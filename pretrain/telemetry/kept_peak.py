"""The peak of all ranks' devices together, which the first start of a run measures and later ones read.

In: the ranks, and the run. Out: matrix-product FLOPs per second, summed. Kept: in run.json, the sum, and a hash of what
it depends on: each rank's machine, device, threads and torch, the type and the width. A start on anything else measures
again. Measuring takes 0.4 s of every start.
"""

import hashlib
import json
import platform
from pathlib import Path

import torch

from pretrain.engine.ranks import Ranks
from pretrain.run.directory import RunDirectory
from pretrain.telemetry.peak import peak


def peak_of_all(engine: Ranks, run: RunDirectory, dtype: torch.dtype, width: int) -> float:
    """FLOPs per second of all ranks together, for products of `dtype` in a model of that width; collective.

    Where it is measured, the ranks of one CPU share its cores, as they do when they train.
    """
    of_ranks = engine.gather([*_machine(engine.device), engine.ranks_per_node, str(dtype), width])
    machines = hashlib.sha256(json.dumps(of_ranks).encode()).hexdigest()
    kept = engine.on_main(lambda: run.read().peak)
    if kept and kept[0] == machines:
        return kept[1]
    found = engine.gather(peak(engine.device, dtype, width))
    flops = sum(each.flops for each in found)
    if any(each.origin == "measured" for each in found):
        engine.on_main(lambda: run.describe(peak=(machines, flops)))
    return flops


def _machine(device: torch.device) -> list[object]:
    """What the peak of a device depends on, as far as a process can see it."""
    if device.type == "cuda":
        return [platform.node(), torch.cuda.get_device_name(device), torch.__version__]
    return [platform.node(), _processor(), torch.get_num_threads(), torch.__version__]


def _processor() -> str:
    """The model of this machine's processor."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(named, platform.processor() or platform.machine())
