"""The memory that a process uses; `pretrain.proposal.memory` says what to expect before there is a model.

In: a device. Out: bytes. Kept: nothing; the allocator of the device, or the operating system, keeps count.
"""

import torch

from pretrain.telemetry.resident import peak_resident_bytes


def most_bytes(device: torch.device) -> int:
    """Most bytes that this process has used so far: of a GPU's memory by its tensors, else of the machine's memory."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    return peak_resident_bytes()
