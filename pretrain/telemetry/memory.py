"""The memory that a process uses, or could take, and the speed of training between two lines of metrics.

In: a device; tokens and FLOPs of each step, and when the loop waits. Out: bytes; `Throughput`. Kept: the sums since the
last line; the allocator of the device, or the operating system, counts memory. `pretrain.proposal.memory` says what
memory to expect without a model.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

import torch

from pretrain.telemetry.resident import peak_resident_bytes


class Throughput(NamedTuple):
    """The speed, as a line of metrics has it."""

    tokens_per_s: float
    loader_wait: float
    """Share of the time in which the step waited for its batches."""
    flops_per_s: float


class Timer:
    """Measures from its creation on."""

    def __init__(self) -> None:
        self._since, self._tokens, self._flops, self._waited = time.perf_counter(), 0, 0.0, 0.0

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Count the time inside this block as waiting."""
        started = time.perf_counter()
        yield
        self._waited += time.perf_counter() - started

    def count(self, tokens: int, flops: float) -> None:
        """Count one finished step."""
        self._tokens += tokens
        self._flops += flops

    def read(self) -> Throughput:
        """The speed so far."""
        elapsed = time.perf_counter() - self._since
        return Throughput(self._tokens / elapsed, self._waited / elapsed, self._flops / elapsed)


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
