"""The launch: builds the engine that was asked for, and checks that Accelerate set up that one.

In: what the launcher set up. Out: an `Engine`. Kept: the process group, until the run ends.
"""

import gc
import os
import socket
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from pathlib import Path
from typing import Any
from unittest.mock import patch

import psutil
import torch
import torch.distributed as dist
from accelerate import Accelerator
from accelerate.state import DistributedType, PartialState
from accelerate.utils import InitProcessGroupKwargs, parse_flag_from_env

from zymogen.processes import signals
from zymogen.processes.errors import RollbackError
from zymogen.processes.launcher import launched_world
from zymogen.processes.signals import Interrupted
from zymogen.settings.interval import seconds
from zymogen.trainer.engine.engine import Engine
from zymogen.trainer.engine.launch_request import ALONE, LaunchConfig, read_launch_config
from zymogen.trainer.engine.ranks import PATIENCE, context_group
from zymogen.trainer.engine.rendezvous import INIT_METHOD
from zymogen.trainer.engine.settings import LaunchSettings


@contextmanager
def launch(recipe: LaunchSettings) -> Iterator[Engine]:
    """The engine that the launcher asked for; trackers and process group are closed on the way out.

    Raises:
        ValueError: it is not the engine, world size or precision that was asked for, or not one that works here.
    """
    asked = read_launch_config()
    asked.check(recipe)
    _check_devices(asked, launched_world().local_world_size or 1)
    kind = _engine(asked)
    accelerator: Accelerator | None = None
    try:
        with signals.exit_on_signal(), _named_interface():
            accelerator = _accelerator(asked, kind, recipe)
            _check(asked, kind, accelerator)
            rank, world_size, timeout = accelerator.process_index, accelerator.num_processes, _timeout(recipe)
            # Not NCCL, which would need memory of the GPU for it, and a thread that watches it for hours.
            patient = dist.new_group(backend="gloo", timeout=PATIENCE) if world_size > 1 else None
            context = context_group(recipe.parallel.context, rank, world_size, timeout)
        yield kind(accelerator, asked.precision, context, timeout=timeout, patient=patient)
    except BaseException as error:
        # What a traceback holds cannot be released, and the model is in it.
        traceback.clear_frames(error.__traceback__)
        if (isinstance(error, RollbackError) or (isinstance(error, Interrupted) and error.agreed)) and accelerator:
            _release(accelerator)
            accelerator.end_training()
            raise
        # NCCL's shutdown waits for the other ranks, and they may never come; the launcher ends them with this process.
        if dist.is_initialized() and dist.get_backend() != "nccl":
            _release(accelerator)
            dist.destroy_process_group()
        raise
    _release(accelerator)
    accelerator.end_training()  # trackers, then the process group


@contextmanager
def _named_interface() -> Iterator[None]:
    """Add to an error of gloo, which connects every rank with every other, the address that it uses and the remedy."""
    try:
        yield
    except RuntimeError as error:
        if "gloo" in str(error).lower():
            error.add_note(_interface())
        raise


def _interface() -> str:
    world, host, variable = launched_world(), socket.gethostname(), "GLOO_SOCKET_IFNAME"
    used, found = f"{variable}={os.environ.get(variable)}", set[str]()
    with suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        if variable not in os.environ:
            used = f"{socket.gethostbyname(host)}, to which its name resolves"
        probe.connect((world.address, world.port))  # sends nothing
        local = probe.getsockname()[0]
        found = {name for name, each in psutil.net_if_addrs().items() if local in {one.address for one in each}}
    reaches = f"export {variable}={min(found)}" if found else f"export {variable} with the interface"
    return (
        f"gloo connects no ranks from rank {world.rank} on {host} ({used}): set the network interface that reaches "
        f"{world.address} on every node before the launch: {reaches}"
    )


def _accelerator(asked: LaunchConfig, kind: type[Engine], recipe: LaunchSettings) -> Accelerator:
    with sharding_on_a_cpu(asked.distributed_type):
        return Accelerator(
            cpu=not torch.cuda.is_available() and asked.distributed_type not in ("FSDP", "DEEPSPEED"),
            mixed_precision="no",  # overrides the launcher's environment: the engine sets the precision
            log_with=list(recipe.run.trackers) or None,
            project_dir=recipe.run.directory,
            kwargs_handlers=[InitProcessGroupKwargs(init_method=INIT_METHOD, timeout=_timeout(recipe))],
            **kind.plugins(recipe.optimizer.clip_norm),
        )


def _timeout(recipe: LaunchSettings) -> timedelta:
    return timedelta(seconds=seconds("parallel.timeout", recipe.parallel.timeout))


def _engine(asked: LaunchConfig) -> type[Engine]:
    # Imported here: DeepSpeed need not be installed, and neither is needed by a benchmark of the model.
    if asked.distributed_type == "FSDP":
        from zymogen.trainer.engine.fully_sharded import FullyShardedEngine

        return FullyShardedEngine
    if asked.distributed_type == "DEEPSPEED":
        from zymogen.trainer.engine.zero import ZeroEngine

        return ZeroEngine
    return Engine


def _release(accelerator: Accelerator | None) -> None:
    """Release the model, through which DDP holds the process group.

    If either still exists when the interpreter shuts down, its threads abort the process (exit -6 in 5 of 12 launches
    with three ranks).
    """
    if accelerator:
        accelerator.free_memory()
    gc.collect()


def _check_devices(asked: LaunchConfig, processes: int) -> None:
    if parse_flag_from_env("ACCELERATE_USE_CPU"):  # accelerate launch --cpu: the GPUs are not used
        return
    if torch.version.cuda is None and Path("/proc/driver/nvidia/version").exists() and launched_world().rank == 0:
        print(
            "note: this machine has an NVIDIA GPU, but torch is a CPU build and trains on the CPU; "
            "for the GPU: make clean setup",
            file=sys.stderr,
        )
    devices = torch.cuda.device_count()
    if 0 < devices < processes:
        raise ValueError(
            f"{processes} processes were started on a machine with {devices} GPU(s), and each needs one of its own; "
            f"start {devices} with accelerate launch --num_processes {devices}"
        )
    if devices and asked.precision == "bf16" and torch.version.hip is None:
        _check_bfloat16(asked, processes)


def _check_bfloat16(asked: LaunchConfig, processes: int) -> None:
    # All of this machine's ranks see the same GPUs, so each raises the same error.
    old = [n for n in range(processes) if torch.cuda.get_device_capability(n) < (8, 0)]
    if not old:
        return
    name = torch.cuda.get_device_name(old[0])
    remedy = "--mixed_precision fp16, or in float32 with --mixed_precision no"
    if asked.distributed_type in ("FSDP", "DEEPSPEED"):
        remedy = "--mixed_precision no, or with accelerate_configs/ddp.yaml and --mixed_precision fp16"
    if asked.origin == ALONE:  # there are no flags
        remedy = "ACCELERATE_MIXED_PRECISION=fp16 in the environment, or in float32 with ACCELERATE_MIXED_PRECISION=no"
    raise ValueError(
        f"{asked.origin} asks for mixed_precision bf16, and {name} computes in no bfloat16 (GPUs from Ampere on do); "
        f"launch it with {remedy}"
    )


def _check(asked: LaunchConfig, kind: type[Engine], accelerator: Accelerator) -> None:
    world_size = int(accelerator.num_processes)
    if asked.world_size is not None and asked.world_size != world_size:
        raise ValueError(
            f"{asked.world_size} processes were asked for ({asked.origin}), but {world_size} train together: "
            f"distributed_type {asked.distributed_type}, as it is launched here, does not start them; use a file of "
            "accelerate_configs/, such as ddp.yaml (MULTI_GPU, which means several processes, with or without GPUs; "
            "use_cpu: false), or num_processes: 1"
        )
    if asked.precision == "fp16" and accelerator.device.type == "cpu":
        raise ValueError(
            f"{asked.origin} asks for mixed_precision fp16, and this run computes on a CPU, where allowed are 'no' and "
            "'bf16'; launch it with --mixed_precision bf16, or on a GPU"
        )
    if accelerator.distributed_type not in kind.distributed_types:
        raise ValueError(
            f"{asked.origin} asks for {asked.distributed_type}, and Accelerate set up "
            f"{accelerator.distributed_type.value}; use one of the files in accelerate_configs/"
        )


@contextmanager
def sharding_on_a_cpu(distributed_type: str) -> Iterator[None]:
    """Make Accelerate set up 'FSDP' and 'DEEPSPEED' on a CPU, too, while the `Accelerator` is built.

    Accelerate 1.15 turns them on for GPUs alone: on a CPU each process would train its own model, or fail in
    DeepSpeed's checks of batch sizes. DeepSpeed 0.19 compiles collectives in shared memory before the first one is
    called, which takes a minute and a compiler; gloo does the same work. If torch sees a GPU, nothing is changed.
    """
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
