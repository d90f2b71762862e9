"""The engine: builds the Accelerator, checks that it is the one asked for, and is the only place that knows it.

In: what the launcher set up. Out: an `Engine` with the few operations that training needs. Kept: process group.
"""

import gc
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar, cast

import torch
import torch.distributed as dist
from accelerate import Accelerator
from accelerate.utils import DistributedType, InitProcessGroupKwargs
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from data.batch import Batch
from pretrain.engine.request import LaunchRequest, requested
from pretrain.recipe import Recipe

T = TypeVar("T")

_TIMEOUT = timedelta(hours=6)
"""How long a rank waits for the others; longest where rank 0 builds a token store of hundreds of millions of records.
A rank that dies is noticed at once all the same: its connections close, and the launcher ends the others."""

_COMPUTE = {"no": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


class PeerError(RuntimeError):
    """Another rank failed first; its message is the one to read."""


@dataclass(frozen=True, slots=True)
class Engine:
    """What training needs from Accelerate, and nothing else.

    Precision is the engine's own, so that it means one thing under every way of spreading a run: float32 parameters,
    moments and sums over ranks, and autocast inside the step. The accelerator must be one of mixed_precision 'no'; with
    another it would wrap the model's forward pass in an autocast of its own.
    """

    accelerator: Accelerator
    precision: str = "no"
    """What the step computes in, as Accelerate names it: 'no' (float32), 'bf16' or 'fp16'."""
    scaler: torch.amp.GradScaler = field(init=False, repr=False, compare=False)
    """Keeps small gradients from vanishing in float16; does nothing in another precision."""

    def __post_init__(self) -> None:
        """A fresh loss scale, on this rank's device."""
        if self.precision not in _COMPUTE:
            raise ValueError(f"precision {self.precision!r}: must be one of {', '.join(_COMPUTE)}")
        scaler = torch.amp.GradScaler(self.device.type, enabled=self.precision == "fp16")
        object.__setattr__(self, "scaler", scaler)

    @property
    def rank(self) -> int:
        """This process's number in the world."""
        return int(self.accelerator.process_index)

    @property
    def world_size(self) -> int:
        """Number of processes that train together."""
        return int(self.accelerator.num_processes)

    @property
    def is_main(self) -> bool:
        """Whether this is rank 0, which writes and speaks."""
        return self.rank == 0

    @property
    def device(self) -> torch.device:
        """Where this rank computes."""
        return cast(torch.device, self.accelerator.device)

    @property
    def compute_dtype(self) -> torch.dtype:
        """What matrix products are computed in: autocast's, or the parameters' float32."""
        return _COMPUTE[self.precision]

    @property
    def ranks_per_node(self) -> int:
        """Ranks on this machine; all of them where the launcher does not say."""
        return int(os.environ.get("LOCAL_WORLD_SIZE", self.world_size))

    @property
    def name(self) -> str:
        """The engine's name, as recorded in checkpoints."""
        return "single" if self.world_size == 1 else "ddp"

    def prepare(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> tuple[nn.Module, Any]:
        """Model and optimizer as the engine runs them; never the loader, which Accelerate would shard again."""
        prepared_model, prepared_optimizer = self.accelerator.prepare(model, optimizer)
        if isinstance(prepared_model, DistributedDataParallel):
            prepared_model.register_comm_hook(None, lambda _, bucket: _summed(bucket))
        return prepared_model, prepared_optimizer

    def settle(self, model: nn.Module, batch: Batch) -> None:
        """One forward and backward pass whose gradients are thrown away, so that DDP's buckets have their final layout.

        DDP reduces its first gradients in buckets by registration order, then rebuilds them by order of arrival. A
        run that resumes at step n would reduce that step in the first layout, an uninterrupted one in the second;
        with three or more ranks the sums then differ in their last bit. Settling before the first step of every
        start gives both the same layout.
        """
        if self.world_size > 1:
            with self.autocast():
                loss = model(batch.to(self.device)).sum()
            self.backward(loss)
            model.zero_grad(set_to_none=True)

    def autocast(self) -> AbstractContextManager[None]:
        """The step's compute dtype; parameters, moments and reductions stay float32."""
        if self.precision == "no":
            return nullcontext()
        return torch.autocast(self.device.type, dtype=self.compute_dtype)

    def on_device(self, values: Tensor) -> Tensor:
        """A small tensor of the host's on the device; from pinned memory, so that neither waits for the other."""
        if self.device.type == "cuda":
            values = values.pin_memory()
        return values.to(self.device, non_blocking=True)

    def accumulating(self, model: nn.Module, *, exchange: bool) -> AbstractContextManager[None]:
        """Context of one micro-batch: gradients add up locally, and are exchanged if `exchange`."""
        if exchange:
            return nullcontext()
        return cast(AbstractContextManager[None], self.accelerator.no_sync(model))

    def backward(self, loss: Tensor) -> None:
        """Backward of this rank's share of the loss, times the loss scale; gradients are summed over ranks."""
        self.accelerator.backward(self.scaler.scale(loss))

    def loss_scale(self) -> Tensor:
        """What the loss is multiplied by, a scalar on the device; 1 but for fp16."""
        scale: Tensor = self.scaler.scale(torch.ones((), device=self.device))
        return scale

    def unscale_gradients(self, optimizer: torch.optim.Optimizer) -> None:
        """Take the loss scale out of the gradients; once a step, before anything measures them."""
        self.scaler.unscale_(_inner(optimizer))

    def clip_gradients(self, model: nn.Module, max_norm: float) -> Tensor:
        """Scale the gradients down to a global norm of `max_norm`; the norm before, a scalar."""
        norm = self.accelerator.clip_grad_norm_(model.parameters(), max_norm)
        return cast(Tensor, norm)

    def update(self, optimizer: torch.optim.Optimizer, skip: Tensor) -> None:
        """Let the optimizer take its step unless `skip`, then adapt the loss scale.

        Args:
            optimizer: weights, moments and step counts stay as they are where the step is skipped. One that follows
                torch's protocol for it (the fused ones) decides on the device; for another the host waits for `skip`.
            skip: float32 scalar on the device, 1 or 0, the same on every rank.
        """
        inner: Any = _inner(optimizer)
        if getattr(inner, "_step_supports_amp_scaling", False):
            inner.grad_scale, inner.found_inf = None, skip
            try:
                optimizer.step()
            finally:
                del inner.grad_scale, inner.found_inf
        elif not skip.item():
            optimizer.step()
        self.scaler.update()

    def scaler_state(self) -> dict[str, float] | None:
        """What a checkpoint keeps of the loss scale; None but for fp16."""
        state = self.scaler.state_dict()
        return {"scale": state["scale"], "growth_tracker": state["_growth_tracker"]} if state else None

    def restore_scaler(self, kept: Mapping[str, float] | None) -> None:
        """Go on with a checkpoint's loss scale; it is dropped in another precision, and None leaves a fresh one."""
        if kept and self.scaler.is_enabled():
            state = {"scale": kept["scale"], "_growth_tracker": kept["growth_tracker"]}
            self.scaler.load_state_dict({**self.scaler.state_dict(), **state})

    def sum_over_ranks(self, values: Tensor) -> Tensor:
        """Elementwise sum of tensors on the device, the same on every rank; integers wrap modulo 2**64."""
        if self.world_size == 1:
            return values
        total = values.clone()
        dist.all_reduce(total)
        return total

    def gather(self, value: T) -> list[T]:
        """Every rank's `value`, in rank order, on every rank."""
        if self.world_size == 1:
            return [value]
        values: list[Any] = [None] * self.world_size
        dist.all_gather_object(values, value)
        return cast(list[T], values)

    def on_main(self, work: Callable[[], T]) -> T:
        """What `work` returns on rank 0, on every rank. If it raises there, every rank stops.

        Raises:
            PeerError: on the other ranks, where `work` raised on rank 0.
        """
        if self.world_size == 1:
            return work()
        answer: list[Any] = [None, None]
        failure: BaseException | None = None
        if self.is_main:
            try:
                answer[0] = work()
            except Exception as error:
                failure, answer[1] = error, f"{type(error).__name__}: {error}"
        dist.broadcast_object_list(answer, src=0, device=self.device)
        if failure:
            raise failure
        if answer[1] is not None:
            raise PeerError(f"rank 0 failed: {answer[1]}")
        return cast(T, answer[0])

    def on_each_node(self, work: Callable[[], T]) -> T:
        """What `work` returns on the first rank of this node; rank 0 comes first. If it raises anywhere, all stop.

        Nodes that share a disk find there what rank 0 made; nodes that do not, make their own.

        Raises:
            PeerError: on the other ranks, where `work` raised on one.
        """
        made = self.on_main(work)
        if self.world_size == self.ranks_per_node:
            return made
        answer: tuple[T | None, str | None] = made, None
        failure: BaseException | None = None
        if self.rank % self.ranks_per_node == 0 and not self.is_main:
            try:
                answer = work(), None
            except Exception as error:
                failure, answer = error, (None, f"rank {self.rank} failed: {type(error).__name__}: {error}")
        answers = self.gather(answer)
        if failure:
            raise failure
        for _, failed in answers:
            if failed:
                raise PeerError(failed)
        return cast(T, answers[self.rank - self.rank % self.ranks_per_node][0])

    def start_trackers(self, config: dict[str, Any], folder: Path) -> None:
        """Open the experiment trackers that were asked for."""
        if not self.accelerator.log_with:
            return
        if not (os.environ.get("WANDB_API_KEY") or _has_wandb_login()):
            os.environ.setdefault("WANDB_MODE", "offline")  # without an account, keep the run on disk
        self.accelerator.init_trackers(
            "zymogen", config=config, init_kwargs={"wandb": {"dir": str(folder), "name": folder.name}}
        )

    def track(self, values: dict[str, float], step: int) -> None:
        """Send numbers to the trackers, if any."""
        self.accelerator.log(values, step=step)


@contextmanager
def launch(recipe: Recipe) -> Iterator[Engine]:
    """The engine that the launcher asked for; trackers and process group are closed on the way out.

    Raises:
        ValueError: it is not the engine, world size or precision that was asked for, or not one that works here.
    """
    asked = requested()
    asked.check(recipe)
    _check_devices(int(os.environ.get("LOCAL_WORLD_SIZE", "1")))
    accelerator = Accelerator(
        cpu=not torch.cuda.is_available(),
        mixed_precision="no",  # over the launcher's environment: precision is the engine's
        log_with=list(recipe.run.trackers) or None,
        project_dir=recipe.run.directory,
        kwargs_handlers=[InitProcessGroupKwargs(timeout=_TIMEOUT)],
    )
    try:
        _check(asked, accelerator)
        yield Engine(accelerator, asked.precision)
    except BaseException:
        # NCCL's shutdown waits for the other ranks, and they may never come; the launcher ends them with this process.
        if dist.is_initialized() and dist.get_backend() != "nccl":
            _release(accelerator)
            dist.destroy_process_group()
        raise
    _release(accelerator)
    accelerator.end_training()  # trackers, then the process group


def _release(accelerator: Accelerator) -> None:
    """Let go of the model.

    DDP holds the process group. What is left of either when the interpreter goes down takes its threads with it, and
    they abort the process (exit -6 in 5 of 12 launches with three ranks).
    """
    accelerator.free_memory()
    gc.collect()


def _inner(optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer:
    """The optimizer inside Accelerate's wrapper."""
    return cast(torch.optim.Optimizer, getattr(optimizer, "optimizer", optimizer))


def _summed(bucket: Any) -> torch.futures.Future[Tensor]:
    """Gradients of all ranks, added up; DDP's own hook averages.

    The loss is divided already. Undoing DDP's division by the world size would round every gradient twice unless that
    size is a power of two: three ranks then end 2 to 4 times further from one process than regrouping its sums does.
    """
    future: torch.futures.Future[list[Tensor]] = dist.all_reduce(bucket.buffer(), async_op=True).get_future()
    return future.then(lambda reduced: reduced.value()[0])


def _check_devices(processes: int) -> None:
    if (
        torch.version.cuda is None
        and Path("/proc/driver/nvidia/version").exists()
        and not int(os.environ.get("RANK", 0))
    ):
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


def _check(asked: LaunchRequest, accelerator: Accelerator) -> None:
    world_size = int(accelerator.num_processes)
    if asked.world_size is not None and asked.world_size != world_size:
        raise ValueError(
            f"{asked.world_size} processes were asked for ({asked.origin}), but {world_size} train together: "
            f"distributed_type {asked.distributed_type} does not start them on this machine; use "
            "accelerate_configs/ddp.yaml (MULTI_GPU, which means several processes, with or without GPUs), "
            "or num_processes: 1"
        )
    if asked.precision == "fp16" and accelerator.device.type == "cpu":
        raise ValueError(
            f"{asked.origin} asks for mixed_precision fp16, and this run computes on a CPU, where allowed are 'no' and "
            "'bf16'; launch it with --mixed_precision bf16, or on a GPU"
        )
    allowed = {DistributedType.NO, DistributedType.MULTI_GPU, DistributedType.MULTI_CPU}
    if accelerator.distributed_type not in allowed:
        raise ValueError(
            f"the launcher set up {accelerator.distributed_type.value}; this version trains in one process or with "
            "DDP: use accelerate_configs/single.yaml or accelerate_configs/ddp.yaml"
        )


def _has_wandb_login() -> bool:
    netrc = Path.home() / ".netrc"
    return netrc.exists() and "wandb" in netrc.read_text()
