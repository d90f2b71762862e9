"""The engine: how a run is spread over processes. The one in this module is for a single process and for DDP.

In: model, optimizer, micro-batches. Out: gradients of the whole step, and the optimizer's step. Kept: the loss scale.

Every engine gives the result of one process, which is contract C5 of docs/contracts.md. The methods of `Engine` are
what could make engines differ; the engines that shard override them: `fully_sharded` (FSDP2, HSDP) and `zero`
(DeepSpeed).
"""

import gc
import os
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, cast

import torch
import torch.distributed as dist
from accelerate.utils import DistributedType
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from data.batches.batch import Batch
from data.batches.loader import Step
from zymogen.console.safe_text import log
from zymogen.processes.errors import with_location
from zymogen.trainer.engine.named_state import NamedState, TorchState
from zymogen.trainer.engine.ranks import ContextGroup, Ranks
from zymogen.unsupported import UnsupportedFeature

_COMPUTE = {"no": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


@dataclass(frozen=True)
class Engine(Ranks):
    """What training needs from Accelerate, and nothing else.

    The engine sets the precision, not Accelerate, so that it means the same under every way of spreading a run: float32
    parameters, moments and sums over ranks, and autocast inside the step. The accelerator must have mixed_precision
    'no'; with another value it would wrap the model's forward pass in an autocast of its own.
    """

    distributed_types: ClassVar[frozenset[DistributedType]] = frozenset(
        {DistributedType.NO, DistributedType.MULTI_GPU, DistributedType.MULTI_CPU}
    )
    """What Accelerate must have set up for this engine."""

    precision: str = "no"
    """What the step computes in, as Accelerate names it: 'no' (float32), 'bf16' or 'fp16'."""
    context: ContextGroup = field(default=ContextGroup())
    """The ranks that share every batch with this one."""
    scaler: torch.amp.GradScaler = field(init=False, repr=False, compare=False)
    """Keeps small gradients from vanishing in float16; does nothing in another precision."""

    def __post_init__(self) -> None:
        """A fresh loss scale, on this rank's device."""
        if self.precision not in _COMPUTE:
            raise ValueError(f"precision {self.precision!r}: must be one of {', '.join(_COMPUTE)}")
        self._begin_scale()

    def _begin_scale(self) -> None:
        scaler = torch.amp.GradScaler(self.device.type, enabled=self.precision == "fp16")
        object.__setattr__(self, "scaler", scaler)

    @staticmethod
    def plugins(clip_norm: float) -> dict[str, Any]:
        """Arguments of this engine's `Accelerator`, besides those that every engine gives it."""
        del clip_norm  # for engines that clip by themselves
        return {}

    @property
    def compute_dtype(self) -> torch.dtype:
        """The dtype of matrix products: autocast's, or the parameters' float32."""
        return _COMPUTE[self.precision]

    @property
    def name(self) -> str:
        """The engine's name, as recorded in checkpoints."""
        return "single" if self.world_size == 1 else "ddp"

    @property
    def launched(self) -> str:
        """Engine and world, for the first line of a run."""
        return f"{self.name}, {self.world_size} process{'es' if self.world_size > 1 else ''}"

    @property
    def data_rank(self) -> int:
        """The number by which this rank gets its bins of a step, the same in one context-parallel group."""
        return self.rank // self.context.size

    @property
    def data_world_size(self) -> int:
        """The number of context-parallel groups, among which the bins of a step are divided."""
        return self.world_size // self.context.size

    @property
    def in_lockstep(self) -> bool:
        """Whether all ranks must make a pass through the model when one does, because its parameters are spread."""
        return False

    @property
    def compile_obstacle(self) -> UnsupportedFeature | None:
        """What keeps the layers of a model from being compiled under this engine; None if nothing does."""
        return None

    def prepare(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> tuple[nn.Module, Any]:
        """Model and optimizer as the engine runs them; the loader does without Accelerate, which would shard it again.

        Args:
            model: parameters on the meta device are allocated here, on each rank its own part; `named_state.fill` or a
                checkpoint gives them values afterwards.
            optimizer: of the model's parameters, without state.
        """
        with swap_parameters(optimizer, model):
            self._allocate(model)
        prepared_model, prepared_optimizer = self.accelerator.prepare(model, optimizer)
        if isinstance(prepared_model, DistributedDataParallel):
            prepared_model.register_comm_hook(None, lambda _, bucket: _summed(bucket))
        return prepared_model, prepared_optimizer

    def release(self) -> None:
        """Release what `prepare` returned, so that another model can be prepared; the caller's own names go first.

        Trackers are closed, and the loss scale is a fresh one: whatever comes next begins as in a process of its own.
        """
        self.accelerator.free_memory()
        for tracker in self.accelerator.trackers:
            tracker.finish()
        self.accelerator.trackers.clear()
        self._begin_scale()
        gc.collect()  # DDP's model holds itself

    def _allocate(self, model: nn.Module) -> None:
        """Allocate the parameters that are on the meta device on this rank's device; their values are undefined."""
        if any(parameter.is_meta for parameter in model.parameters()):
            model.to_empty(device=self.device)

    def named_state(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> NamedState:
        """State by name of what `prepare` returned; make it again after every `prepare`."""
        return TorchState(model, optimizer)

    def warm_up(self, model: nn.Module, batch: Batch) -> None:
        """One forward and backward pass whose gradients are thrown away, so that DDP's buckets have their final layout.

        DDP reduces its first gradients in buckets by registration order, then rebuilds them by order of arrival. A
        run that resumes at step n would reduce that step in the first layout, an uninterrupted one in the second;
        with three or more ranks the sums then differ in their last bit. Settling before the first step of every
        start gives both the same layout.
        """
        if self.world_size > 1:
            with self.autocast():
                loss = model(self.share(batch).to(self.device)).sum()
            self.accelerator.backward(loss)
            model.zero_grad(set_to_none=True)

    def share(self, batch: Batch) -> Batch:
        """What this rank computes of a batch that its context-parallel group shares."""
        return batch.share(self.context.rank, self.context.size)

    def micro_batches(self, step: Step) -> list[Batch]:
        """This rank's micro-batches, then idle ones if another rank has more and all must make equally many passes."""
        missing = step.max_micro_batches - len(step.batches) if self.in_lockstep else 0
        idle = [step.batches[0].idle()] * missing if missing > 0 else []
        return [self.share(batch) for batch in (*step.batches, *idle)]

    def autocast(self) -> AbstractContextManager[None]:
        """The step's compute dtype; parameters, moments and reductions stay float32."""
        if self.precision == "no":
            return nullcontext()
        return torch.autocast(self.device.type, dtype=self.compute_dtype)

    def accumulating(self, model: nn.Module, *, last: bool) -> AbstractContextManager[None]:
        """Context of one micro-batch: gradients add up locally, and are exchanged with the `last` of a step."""
        return nullcontext() if last else cast(AbstractContextManager[None], self.accelerator.no_sync(model))

    def backward(self, model: nn.Module, loss: Tensor) -> None:
        """Backward of this rank's share of the loss, times the loss scale; gradients are *summed* over ranks.

        They are not averaged, as Accelerate's engines do: the loss has been divided already, once (C4).
        """
        self.accelerator.backward(self.scaler.scale(loss))

    def loss_scale(self) -> Tensor:
        """What the loss is multiplied by, a scalar on the device; 1 except in fp16."""
        scale: Tensor = self.scaler.scale(torch.ones((), device=self.device))
        return scale

    def update(self, model: nn.Module, optimizer: Any, clip_norm: float) -> tuple[Tensor, Tensor]:
        """Clip the gradients and let the optimizer take its step, unless they are not finite; adapt the loss scale.

        Args:
            model: as prepared.
            optimizer: as prepared. If the step is skipped, weights, moments and step counts stay as they are. An
                optimizer that has torch's protocol for this (the fused ones) decides on the device; for others the
                host waits.
            clip_norm: largest global norm of the gradient.

        Returns:
            The global norm before clipping, and 1 if the step was skipped, else 0: float32 scalars on the device,
            the same on every rank.
        """
        inner = getattr(optimizer, "optimizer", optimizer)  # inside Accelerate's wrapper
        self.scaler.unscale_(inner)
        norm = self._clip(model, clip_norm)
        skipped = (~norm.isfinite()).float()
        if self.scaler.is_enabled():
            # The scaler has checked each element; the norm can overflow although no element does.
            found: dict[Any, Tensor] = cast(Any, self.scaler)._found_inf_per_device(inner)
            found.clear()
            found[self.device] = skipped
        if getattr(inner, "_step_supports_amp_scaling", False):
            inner.grad_scale, inner.found_inf = None, skipped
            try:
                optimizer.step()
            finally:
                del inner.grad_scale, inner.found_inf
        elif not skipped.item():
            optimizer.step()
        self.scaler.update()
        optimizer.zero_grad(set_to_none=True)
        return norm, skipped

    def _clip(self, model: nn.Module, clip_norm: float) -> Tensor:
        """Scale the gradients down to a global norm of `clip_norm`; return the norm before that, a scalar."""
        return torch.nn.utils.clip_grad_norm_(model.parameters(), clip_norm)

    def scaler_state(self) -> dict[str, float] | None:
        """What a checkpoint keeps of the loss scale; None except in fp16."""
        state = self.scaler.state_dict()
        return {"scale": state["scale"], "growth_tracker": state["_growth_tracker"]} if state else None

    def restore_scaler(self, kept: Mapping[str, float] | None) -> None:
        """Continue with a checkpoint's loss scale; in another precision it is dropped, and None changes nothing."""
        if kept and self.scaler.is_enabled():
            state = {"scale": kept["scale"], "_growth_tracker": kept["growth_tracker"]}
            self.scaler.load_state_dict({**self.scaler.state_dict(), **state})

    def start_trackers(self, config: dict[str, Any], folder: Path, run_id: str) -> None:
        """Open the experiment trackers that were asked for; only rank 0 has any.

        Args:
            config: the recipe.
            folder: of the run.
            run_id: the same at every start of the run, which W&B and trackio then continue.

        Raises:
            OSError: they cannot write; the error names the file or the folder.
            ValueError: the credentials that wandb finds are invalid.
        """
        names = [str(tracker) for tracker in self.accelerator.log_with]
        if not names:
            return
        mode = _wandb_mode(folder) if "wandb" in names else None
        if "trackio" in names:
            os.environ.setdefault("TRACKIO_DIR", str(folder / "trackio"))  # read when trackio is imported
        own = {
            "wandb": {"dir": str(folder), "name": folder.name, "id": run_id, "resume": "allow", "mode": mode},
            "trackio": {
                **{"name": f"{folder.name}-{run_id[:6]}", "resume": "allow", "embed": False},
                **{"auto_log_cpu": False, "auto_log_gpu": False},
            },
        }
        configuration = self.accelerator.project_configuration
        configuration.project_dir = configuration.logging_dir = str(folder)  # the launch knew the first run's alone
        was_there = (folder / "zymogen").exists()
        with with_location(folder):
            self.accelerator.init_trackers("zymogen", init_kwargs=own)
            for tracker in self.accelerator.trackers:
                if tracker.name == "wandb":
                    tracker.tracker.define_metric("*", step_metric="step")
                if not (tracker.name == "tensorboard" and was_there):  # it would show each start as one more run
                    tracker.store_init_configuration(config)

    def track(self, values: dict[str, float], step: int) -> None:
        """Send numbers to the trackers, if any; one that cannot write them is reported once and then removed."""
        for tracker in list(self.accelerator.trackers):
            try:
                if tracker.name == "wandb":  # which drops, under a step of its own, those that are taken again
                    tracker.log({**values, "step": step})
                else:
                    tracker.log(values, step=step)
            except OSError as error:
                self.accelerator.trackers.remove(tracker)
                words = f"run.trackers: {tracker.name} gets nothing from step {step} on, and training continues"
                log(f"{words}: {error}")


@contextmanager
def swap_parameters(optimizer: torch.optim.Optimizer, model: nn.Module) -> Iterator[None]:
    """Context that replaces the model's parameters; after it, the optimizer holds the new ones of the same names."""
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    held = [[names[id(parameter)] for parameter in group["params"]] for group in optimizer.param_groups]
    for group in optimizer.param_groups:
        group["params"] = []  # so that each old one is freed when it is replaced
    yield
    parameters = dict(model.named_parameters())
    for group, of_group in zip(optimizer.param_groups, held, strict=True):
        group["params"] = [parameters[name] for name in of_group]


def _summed(bucket: Any) -> torch.futures.Future[Tensor]:
    """Sum of the gradients of all ranks; DDP's own hook averages.

    The loss has been divided already. To undo DDP's division by the world size would round every gradient twice unless
    that size is a power of two: three ranks would end 2 to 4 times further from one process than regrouped sums do.
    """
    future: torch.futures.Future[list[Tensor]] = dist.all_reduce(bucket.buffer(), async_op=True).get_future()
    return future.then(lambda reduced: reduced.value()[0])


def _wandb_mode(folder: Path) -> str | None:
    """Return the mode that was asked for, or "offline" where wandb finds no credentials; None: wandb decides.

    It is wandb's own search: variables, .netrc for the server that is set, its settings. Nothing is sent or asked.
    """
    try:
        Path.home()
    except RuntimeError:  # no HOME, and no entry of this user: wandb could not even be imported
        os.environ["HOME"] = str(folder / "wandb")
    from wandb.errors import AuthenticationError
    from wandb.sdk import wandb_setup
    from wandb.sdk.lib import wbauth

    if mode := os.environ.get("WANDB_MODE"):
        return mode  # wandb itself reads it once in a process
    host = wandb_setup.singleton().settings.base_url
    try:
        found = wbauth.authenticate_session(host=host, source="run.trackers", prompt=False, update_session=False)
    except AuthenticationError as error:
        raise ValueError(f"run.trackers: credentials for wandb are invalid: {error}; correct them") from None
    if found is None:
        os.environ["WANDB_MODE"] = "offline"  # for the line that says where to look
    return None if found else "offline"
