"""FSDP and DeepSpeed on a machine without an accelerator: what Accelerate and DeepSpeed lack for it.

In: the kind of engine that was asked for. Out: a context in which to build the `Accelerator`. Kept: nothing. If torch
sees a GPU, nothing is changed.

Accelerate 1.15 turns FSDP and DeepSpeed on for GPUs alone: on a CPU each process would train its own model, or fail
in DeepSpeed's checks of batch sizes. DeepSpeed 0.19 compiles collectives in shared memory before the first is called,
which takes a minute and a compiler; gloo does the same work.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import torch
from accelerate.state import DistributedType, PartialState


@contextmanager
def sharding_on_a_cpu(distributed_type: str) -> Iterator[None]:
    """Make Accelerate set up 'FSDP' and 'DEEPSPEED' on a CPU, too, while the `Accelerator` is built."""
    if not torch.cuda.is_available():
        # Accelerate imports DeepSpeed wherever that is installed, and each process would warn that it found no GPU.
        os.environ.setdefault("DS_ACCELERATOR", "cpu")
    if torch.cuda.is_available() or distributed_type not in ("FSDP", "DEEPSPEED"):
        yield
        return
    with patch.dict(os.environ, ACCELERATE_TORCH_DEVICE="cpu"), patch.object(PartialState, "_prepare_backend", _gloo):
        if distributed_type == "FSDP":
            yield
            return
        with patch("deepspeed.comm.torch.build_shm_op", lambda: None):
            yield


def _gloo(self: PartialState, *_: Any, **__: Any) -> tuple[str | None, DistributedType]:
    """Backend and kind of a launch as on a machine with GPUs, where Accelerate continues with FSDP or DeepSpeed."""
    if int(os.environ.get("LOCAL_RANK", -1)) == -1:
        return None, DistributedType.NO
    return "gloo", DistributedType.MULTI_GPU
