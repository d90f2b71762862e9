"""The memory that training takes: what a process uses, and what to expect of a model before it is trained.

In: a device; or a shape, sizes, and how it is computed. Out: bytes. Kept: nothing; the allocator of the device, or the
operating system, keeps count.
"""

import psutil
import torch

from pretrain.model.encoder import Checkpointing
from pretrain.model.presets import KEPT_BYTES, EsmShape
from pretrain.telemetry.resident import peak_resident_bytes

_KEPT: dict[tuple[bool, bool], dict[Checkpointing, float]] = {
    (False, False): {"none": 61.7, "selective": 24.4, "layer": 4.6},
    (False, True): {"none": KEPT_BYTES["esm2"], "selective": 16.2, "layer": 4.4},
    (True, False): {"none": 78.3, "selective": 32.3, "layer": 4.7},
    (True, True): {"none": KEPT_BYTES["modern"], "selective": 20.1, "layer": 4.5},
}
"""Bytes a slot, channel and layer that are kept for the backward pass, by (is modern, in 16 bits): the table of
docs/compute.md, which `python -m benchmarks.memory` prints."""
_FLOAT32 = 4
_FOR_A_MOMENT = 12 * _FLOAT32
"""Bytes a slot and channel that the backward pass of one layer takes besides: three gradients as wide as its
feed-forward."""
_LIBRARIES = 0.6e9
"""Bytes of memory that a process on a CPU has once its first step has loaded and compiled all that it needs."""


def most_bytes(device: torch.device) -> int:
    """Most bytes that this process has used so far: of a GPU's memory by its tensors, else of the machine's memory."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    return peak_resident_bytes()


def used_bytes(device: torch.device) -> int:
    """Bytes that this process uses now, of the same memory."""
    if device.type == "cuda":
        return torch.cuda.memory_allocated(device)
    return int(psutil.Process().memory_info().rss)


def process_bytes(device: torch.device) -> float:
    """Bytes of the same memory that a process takes before it has a model."""
    return used_bytes(device) if device.type == "cuda" else max(used_bytes(device), _LIBRARIES)


def state_bytes(num_parameters: int, world_size: int, engine: str) -> float:
    """Bytes of one process for parameters, gradients and AdamW's two moments, in float32.

    Args:
        num_parameters: of the whole model.
        world_size: number of processes.
        engine: name of the engine. DDP keeps a second copy of the gradients, to exchange them; HSDP's copies are not
            counted.
    """
    whole, shared = {"single": (4, 0), "ddp": (5, 0), "zero1": (2, 3), "zero2": (1, 4)}.get(engine, (0, 4))
    return num_parameters * _FLOAT32 * (whole + shared / world_size)


def activation_bytes(shape: EsmShape, slots: int, *, is_16_bit: bool, checkpointing: Checkpointing) -> float:
    """Bytes that a forward pass over `slots` keeps for its backward pass, and what that takes for a moment.

    With checkpointing, what one layer computes again is there as well while its backward pass runs.
    """
    kept = _KEPT[shape.is_modern, is_16_bit]
    layers = shape.layers * kept[checkpointing] + (kept["none"] if checkpointing != "none" else 0)
    return slots * shape.dim * (layers + _FOR_A_MOMENT)
