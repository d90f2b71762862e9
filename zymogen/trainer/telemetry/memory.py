"""The memory that a process uses, or could take; `pretrain.model.memory` says what to expect without a model.

In: a device. Out: bytes. Kept: nothing; the allocator of the device, or the operating system, keeps count.
"""

import torch

from zymogen.trainer.telemetry.resident import peak_resident_bytes


def free_bytes(device: torch.device) -> int | None:
    """Bytes of a GPU's memory that this process could still take; None for a CPU, whose memory all programs share."""
    if device.type != "cuda":
        return None
    free, _ = torch.cuda.mem_get_info(device)
    return free + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)


def most_bytes(device: torch.device) -> int:
    """Most bytes that this process has used so far: of a GPU's memory by its tensors, else of the machine's memory."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    return peak_resident_bytes()
