"""State by name: parameters and optimizer moments as whole fp32 tensors, whatever the engine.

In: the model and optimizer that an engine prepared. Out: what this rank stores of each tensor, under the parameter
names of the plain module, so that no reader needs the engine that wrote it. Kept across restarts: trained parameters,
moments and the optimizer's step per parameter. Not kept: frozen parameters, which are read again from their source, and
learning rate and other group settings, which belong to the recipe.

There is one `NamedState` for each way of holding state. `TorchState` serves every engine of torch's own: one process
and DDP, where each rank holds every tensor whole, and FSDP2 and HSDP, where a tensor is a DTensor.
`zero_state.ZeroState` serves DeepSpeed.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Container, Iterable, Mapping, Sequence, Set
from typing import Any, ClassVar, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, Shard
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from zymogen.trainer.engine.spans import Span, StoredPiece, assign_writers, even_spans, stores

# Path components that torch.compile and activation checkpointing put into parameter names.
_WRAPPERS = frozenset({"_orig_mod", "_checkpoint_wrapped_module"})
# Floating types that fit into fp32 without losing a bit.
_FITS_FP32 = frozenset({torch.float32, torch.bfloat16, torch.float16})


def plain_module(model: nn.Module) -> nn.Module:
    """The module inside DDP or DeepSpeed. By type: a module may itself have a child called `module`."""
    while isinstance(model, DistributedDataParallel) or type(model).__name__ == "DeepSpeedEngine":
        model = cast(nn.Module, model.module)
    return model


def plain_name(name: str) -> str:
    """Parameter name without the parts that wrappers insert."""
    return ".".join(part for part in name.split(".") if part not in _WRAPPERS)


def named_parameters(model: nn.Module) -> tuple[dict[str, nn.Parameter], dict[str, str]]:
    """Parameters by plain name, and alias -> name for those that appear under several names."""
    first: dict[int, str] = {}
    parameters: dict[str, nn.Parameter] = {}
    aliases: dict[str, str] = {}
    for wrapped, parameter in plain_module(model).named_parameters(remove_duplicate=False):
        name = plain_name(wrapped)
        if id(parameter) in first:
            aliases[name] = first[id(parameter)]
        else:
            first[id(parameter)] = name
            parameters[name] = parameter
    return parameters, aliases


class NamedState(ABC):
    """What a checkpoint needs of an engine: the names of parameters, and which part of each tensor this rank stores.

    Args:
        model: as an engine prepared it.

    Raises:
        ValueError: the model has persistent state that is no parameter.
    """

    def __init__(self, model: nn.Module) -> None:
        self._parameters, self._aliases = named_parameters(model)
        _require_no_buffers(model, self._parameters.keys() | self._aliases.keys())

    @property
    def names(self) -> Sequence[str]:
        """Names of the trained parameters in module order, tied ones once."""
        return tuple(name for name, parameter in self._parameters.items() if parameter.requires_grad)

    @property
    def frozen(self) -> Sequence[str]:
        """Names of the parameters that are not trained, likewise: `shape` and `local_part` take them, too."""
        return tuple(name for name, parameter in self._parameters.items() if not parameter.requires_grad)

    @property
    def aliases(self) -> Mapping[str, str]:
        """Second names of tied parameters -> the name they are stored under."""
        return dict(self._aliases)

    def moments(self, name: str) -> list[str]:
        """Sorted keys of the moments; empty before the parameter's first step.

        Raises:
            ValueError: the optimizer keeps something other than a step and tensors of the shape of what it moves.
        """
        shape, keys = tuple(self._moved(name).shape), []
        for key, value in self._cell(name).items():
            if key == "step" or value is None:
                continue
            if not torch.is_tensor(value) or tuple(value.shape) != shape:
                got = tuple(value.shape) if torch.is_tensor(value) else type(value).__name__
                raise ValueError(
                    f"optimizer state {key!r} of {name!r} is {got}; only a step and tensors of the "
                    f"{self.moved}'s shape {shape} can be stored by name"
                )
            _require_float(f"{key}/{name}", value)
            keys.append(key)
        return sorted(keys)

    def step_of(self, name: str) -> int:
        """How many times the optimizer moved this parameter; 0 if it never did."""
        return int(self._cell(name).get("step", 0))

    def set_step(self, name: str, step: int) -> None:
        """Set the optimizer's step of one parameter."""
        cell = self._cell(name)
        if "step" not in cell:
            if step:
                raise ValueError(f"the optimizer counts no steps for {name!r}; got step {step}")
        elif torch.is_tensor(cell["step"]):
            cell["step"].fill_(step)
        else:
            cell["step"] = step

    @abstractmethod
    def shape(self, name: str) -> tuple[int, ...]:
        """Whole shape of a parameter and of each of its moments."""

    @abstractmethod
    def pieces(self) -> list[StoredPiece]:
        """What this rank stores: parameters and moments in the order of `names`; ranks do not communicate.

        Over all ranks, the pieces of a tensor cover it once.
        """

    def replica(self) -> tuple[int, dict[str, Tensor]] | None:
        """What this rank holds of parameters and moments, by name, if other ranks hold the same; None if none does.

        The number before it is the same on all ranks that hold the same.
        """
        return None

    @abstractmethod
    def begin_load(self) -> None:
        """Let the optimizer allocate its moments; no parameter is moved and no step is counted."""

    @abstractmethod
    def local_part(self, name: str, key: str) -> tuple[Span, Tensor]:
        """Which elements of a tensor this rank holds, and the tensor that holds them, and padding after them perhaps.

        What is written to it is what the optimizer moves; ranks do not communicate.
        """

    @abstractmethod
    def end_load(self) -> None:
        """Make what was written visible to the forward pass; collective."""

    moved: ClassVar[str]
    """The word for what the optimizer moves, for errors."""

    @abstractmethod
    def _moved(self, name: str) -> Tensor:
        """The tensor that the optimizer moves for a parameter."""

    @abstractmethod
    def _cell(self, name: str) -> dict[str, Any]:
        """What the optimizer keeps for that tensor; empty before its first step."""


Weights = Mapping[str, Callable[[], Tensor]]
"""Draws or reads whole parameters by name, one at a time: float32 on the host."""


def fill(state: NamedState, names: Iterable[str], weights: Weights) -> None:
    """Give parameters their values, `weights[name]()` in the parameter's shape; collective.

    Only one whole tensor exists at a time, besides the parts that are kept.
    """
    for name in names:
        value = weights[name]()
        assert tuple(value.shape) == state.shape(name), f"{name!r}: {tuple(value.shape)} into {state.shape(name)}"
        (start, stop), part = state.local_part(name, "param")
        set_tensor(value.flatten()[start:stop], part)
    state.end_load()


@torch.no_grad()
def set_tensor(values: Tensor, part: Tensor) -> None:
    """Copy elements into what `NamedState.local_part` gives, so that ties and the optimizer's references hold."""
    if part.numel() == len(values):
        part.copy_(values.view(part.shape))
        return
    flat = part.view(-1)
    flat[: len(values)].copy_(values)
    flat[len(values) :].zero_()


class TorchState(NamedState):
    """State of one process, of DDP, FSDP2 or HSDP.

    Args:
        model: the module, or DDP around it, or FSDP2 in it.
        optimizer: a torch optimizer, or Accelerate's wrapper of one.

    Raises:
        ValueError: a trainable parameter is held by no optimizer, the optimizer holds another model's parameters, or
            there is state that named fp32 tensors cannot carry.
    """

    moved = "parameter"

    def __init__(self, model: nn.Module, optimizer: Optimizer) -> None:
        super().__init__(model)
        self._optimizer: Optimizer = getattr(optimizer, "optimizer", optimizer)
        held = {id(p) for group in self._optimizer.param_groups for p in group["params"]}
        require_held(self._parameters, held)
        strangers = held - {id(p) for p in self._parameters.values()}
        if strangers:
            raise ValueError(
                f"the optimizer holds {len(strangers)} parameters that the model does not have; "
                "build it from this model's parameters, and take both from one `prepare`"
            )
        for name, parameter in self._parameters.items():
            _require_float(name, parameter)

    def shape(self, name: str) -> tuple[int, ...]:
        """Shape of a parameter and of each of its moments."""
        return tuple(self._parameters[name].shape)

    def pieces(self) -> list[StoredPiece]:
        """What this rank stores: its rows of DTensors, and of what all ranks hold whole, its share of the tensors."""
        rank = dist.get_rank() if dist.is_initialized() else 0
        sources = {name: ["param", *self.moments(name)] for name in self.names}
        whole = [name for name in sources if not isinstance(self._parameters[name], DTensor)]
        storer = assign_writers({name: len(sources[name]) * self._parameters[name].numel() for name in whole})
        found = []
        for name, keys in sources.items():
            for key in keys:
                tensor, (span, live) = self._tensor(name, key), self.local_part(name, key)
                is_stored = storer.get(name) == rank
                if isinstance(tensor, DTensor):
                    is_stored = stores(span, tensor.numel(), _rows(tensor)[0])
                if is_stored:
                    found.append(StoredPiece(name, key, *span, live))
        return found

    def replica(self) -> tuple[int, dict[str, Tensor]] | None:
        """Under DDP all of the state; under HSDP the rows of this rank."""
        if not dist.is_initialized() or dist.get_world_size() == 1:
            return None
        part = 0
        for parameter in self._parameters.values():
            if isinstance(parameter, DTensor):
                group, _ = _rows(parameter)
                if dist.get_world_size(group) == dist.get_world_size():
                    return None
                part = dist.get_rank(group)
        keys = {name: ["param", *self.moments(name)] for name in self.names} | {n: ["param"] for n in self.frozen}
        return part, {
            name if key == "param" else f"{key}/{name}": _local(self._tensor(name, key).detach())
            for name, of_name in keys.items()
            for key in of_name
        }

    def begin_load(self) -> None:
        """Allocate the moments of parameters that have none yet: zeros, at step 0."""
        trained = [self._parameters[name] for name in self.names]
        materialize_moments(self._optimizer, [p for p in trained if not self._optimizer.state.get(p)])

    def local_part(self, name: str, key: str) -> tuple[Span, Tensor]:
        """The rows of a DTensor that this rank has; all of any other tensor."""
        tensor = self._tensor(name, key).detach()
        span = (0, tensor.numel())
        if isinstance(tensor, DTensor):
            group, spans = _rows(tensor)
            span = spans[dist.get_rank(group)]
        return span, _local(tensor)

    def end_load(self) -> None:
        """Do nothing: what was written is what the forward pass reads."""

    def _moved(self, name: str) -> Tensor:
        return self._parameters[name]

    def _cell(self, name: str) -> dict[str, Any]:
        return cast(dict[str, Any], self._optimizer.state.get(self._parameters[name], {}))

    def _tensor(self, name: str, key: str) -> Tensor:
        return self._parameters[name] if key == "param" else cast(Tensor, self._cell(name)[key])


def _rows(tensor: DTensor) -> tuple[dist.ProcessGroup, list[Span]]:
    """The ranks that hold one copy of a tensor, and the elements of each: rows, as FSDP2 divides them.

    Raises:
        ValueError: the tensor is cut in another way.
    """
    cuts = [axis for axis, placement in enumerate(tensor.placements) if not placement.is_replicate()]
    if len(cuts) != 1 or tensor.placements[cuts[0]] != Shard(0):
        raise ValueError(
            f"a tensor of shape {tuple(tensor.shape)} is placed as {tensor.placements}; only tensors whose rows are "
            "dealt to one group of ranks, as FSDP2 does, can be stored by name"
        )
    ranks = tensor.device_mesh.size(cuts[0])
    each = -(-tensor.shape[0] // ranks) * math.prod(tensor.shape[1:])
    return tensor.device_mesh.get_group(cuts[0]), even_spans(tensor.numel(), ranks, each)


def materialize_moments(optimizer: Optimizer, parameters: Sequence[Tensor]) -> None:
    """Let an optimizer allocate its state for `parameters`: zeros, at step 0.

    Steps a stand-in for each parameter and moves its state to the parameter, so that parameters and gradients are never
    touched (a step at lr 0 on the real ones would rely on every optimizer to multiply all changes by lr). All stand-ins
    share one piece of memory: separate ones would leave holes between the state that stays, in all some 15 % of it.
    """
    settings = [dict(group) for group in optimizer.param_groups]
    memory: dict[tuple[torch.device, torch.dtype], Tensor] = {}
    for part in map(_local, parameters):
        kind = part.device, part.dtype
        if kind not in memory or memory[kind].numel() < part.numel():
            memory[kind] = part.new_empty(part.numel())
    wanted = {id(parameter) for parameter in parameters}
    try:
        for index, group in enumerate(optimizer.param_groups):
            for parameter in settings[index]["params"]:
                if id(parameter) not in wanted:
                    continue
                stand_in = nn.Parameter(_zeros_in(memory, parameter))
                stand_in.grad = stand_in.detach()
                for other in optimizer.param_groups:
                    other["params"] = []
                group["params"] = [stand_in]
                try:
                    optimizer.step()
                finally:
                    cell = optimizer.state.pop(stand_in, None)
                if cell:
                    for key, value in cell.items():
                        cell[key] = value.zero_() if torch.is_tensor(value) else value
                    if "step" in cell and not torch.is_tensor(cell["step"]):
                        cell["step"] = 0
                    optimizer.state[parameter] = cell
    finally:
        for group, before in zip(optimizer.param_groups, settings, strict=True):
            group.clear()
            group.update(before)


def _local(tensor: Tensor) -> Tensor:
    """The part of a tensor that this rank holds."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def _zeros_in(memory: Mapping[tuple[torch.device, torch.dtype], Tensor], like: Tensor) -> Tensor:
    """Zeros laid out as `like` and cut over ranks as it is, in `memory`."""
    part = _local(like.detach())
    zeros = memory[part.device, part.dtype][: part.numel()].zero_().as_strided(part.shape, part.stride())
    if not isinstance(like, DTensor):
        return zeros
    where = like.device_mesh, like.placements
    return DTensor.from_local(zeros, *where, run_check=False, shape=like.shape, stride=like.stride())


def require_held(parameters: Mapping[str, nn.Parameter], held: Container[int]) -> None:
    """Raise ValueError if a trainable parameter's id is not among those that an optimizer holds."""
    orphans = [n for n, p in parameters.items() if p.requires_grad and id(p) not in held]
    if orphans:
        raise ValueError(
            f"{len(orphans)} trainable parameters are held by no optimizer: {orphans[:5]}; "
            "freeze them or add them to a parameter group"
        )


def _require_no_buffers(model: nn.Module, stored: Set[str]) -> None:
    """Raise ValueError if the module has persistent state that is no parameter."""
    buffers = sorted({plain_name(name) for name in plain_module(model).state_dict()} - stored)
    if buffers:
        raise ValueError(
            f"persistent buffers are not stored: {buffers[:5]}; register what can be computed again with "
            "persistent=False, and make a constant a parameter that is frozen (requires_grad=False)"
        )


def _require_float(name: str, tensor: Tensor) -> None:
    """Raise ValueError for what would silently be stored wrong: a part of an unknown whole, or more than fp32 holds."""
    if type(tensor) not in (Tensor, nn.Parameter) and not isinstance(tensor, DTensor):
        got = type(tensor).__name__
        raise ValueError(f"{name!r} is a {got}; only tensors, and DTensors of FSDP2, can be stored by name")
    if tensor.dtype not in _FITS_FP32:
        allowed = sorted(str(dtype) for dtype in _FITS_FP32)
        raise ValueError(f"{name!r} is {tensor.dtype}; fp32 can store {allowed} without loss")
