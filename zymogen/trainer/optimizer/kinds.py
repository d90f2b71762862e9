"""An optimizer as a class: its parameter groups, the tensors that it keeps, and the torch optimizer that it builds.

In: a recipe's settings, a model. Out: parameter groups, an optimizer. Kept: nothing.

`OptimizerKind` is the base class of ours and of the user's (docs/extending.md). Its attributes can be read without
importing torch.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, NotRequired, TypedDict

from zymogen.settings import extension
from zymogen.settings.options import NoOptions
from zymogen.settings.section import Section
from zymogen.trainer.optimizer.settings import OPTIMIZERS, OptimizerSettings

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn


class ParameterGroup(TypedDict):
    """A group as torch's optimizers take it, with a name for readers."""

    name: str
    params: "list[nn.Parameter]"
    weight_decay: float
    blocks: NotRequired[int]
    """Only where Muon moves this group: how many maps, stacked by rows, each of its matrices holds."""
    lr_scale: NotRequired[float]
    """Factor on the schedule's learning rate for this group; 1 where it is left out."""


class OptimizerKind(ABC):
    """An optimizer of a recipe.

    Args:
        settings: the recipe's section.
        options: what `optimizer.options` says, as `Options`.
    """

    Options: ClassVar[type[Section]] = NoOptions
    """A dataclass of settings of its own, with `section = "optimizer.options"`."""
    needs_whole_matrices: ClassVar[bool] = False
    """Whether it needs whole matrices, as Muon does: refused under ZeRO. FSDP2 passes DTensors, to be gathered."""
    moments: ClassVar[int] = 2
    """Number of tensors that it keeps of a matrix of the layers, for the estimate of memory; a step is none."""
    peak_lr_at_128: ClassVar[float] = 2e-3
    """The learning rate that a proposal takes for an encoder of width 128."""
    moves_layer_matrices: ClassVar[bool] = False
    """Whether it is an optimizer for the matrices of the encoder's layers, and refused where none is trained."""

    def __init__(self, settings: OptimizerSettings, options: Section) -> None:
        self.settings, self.options = settings, options

    def parameter_groups(self, model: "nn.Module") -> list[ParameterGroup]:
        """Return the trainable parameters in groups, each parameter once, in module order.

        `decay` holds the matrices, the embedding among them; `no_decay` holds biases and LayerNorm weights, which have
        one dimension and set a scale rather than a map.
        """
        parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
        return self.decay_groups(parameters)

    def decay_groups(self, parameters: "Sequence[nn.Parameter]") -> list[ParameterGroup]:
        """Return the groups `decay` and `no_decay` of some parameters."""
        of_decay = {each: [p for p in parameters if (p.ndim >= 2) is each] for each in (True, False)}
        return [
            {"name": "decay", "params": of_decay[True], "weight_decay": self.settings.weight_decay},
            {"name": "no_decay", "params": of_decay[False], "weight_decay": 0.0},
        ]

    def num_moments(self, group: ParameterGroup) -> int:
        """Return how many tensors it keeps of each parameter of a group."""
        return self.moments

    @abstractmethod
    def build(self, groups: list[dict[str, Any]]) -> "torch.optim.Optimizer":
        """Return the optimizer over parameter groups; its learning rate is set before every step.

        One that has torch's protocol for fused optimizers can skip a step without the host: if its attribute
        `found_inf`, a float32 scalar on the device, is 1, a step leaves weights and state as they are. It then has
        `_step_supports_amp_scaling = True`. For others, the host waits for each step.
        """


class AdamWKind(OptimizerKind):
    """AdamW (Loshchilov and Hutter 2019, arXiv:1711.05101), fused."""

    def build(self, groups: list[dict[str, Any]]) -> "torch.optim.Optimizer":
        """Return torch's."""
        import torch

        return torch.optim.AdamW(groups, lr=0.0, betas=self.settings.betas, eps=self.settings.eps, fused=True)


class MuonKind(OptimizerKind):
    """Muon for the matrices of the encoder's layers, AdamW for the rest.

    The matrices come first, in groups of their own: `muon_1` holds those that are one map, `muon_3` those that are
    three maps stacked by rows, and so on; the int `blocks` of a matrix's module gives the number (1 where it has none).
    """

    needs_whole_matrices = True
    moments = 1
    peak_lr_at_128 = 4e-3
    moves_layer_matrices = True

    def parameter_groups(self, model: "nn.Module") -> list[ParameterGroup]:
        """Return the groups of Muon, then those of AdamW.

        Raises:
            ValueError: `blocks` is not a number that divides the rows, or there is no matrix for Muon.
        """
        by_blocks: dict[int, list[nn.Parameter]] = {}
        others: list[nn.Parameter] = []
        seen: set[nn.Parameter] = set()
        for prefix, module in model.named_modules():
            for name, parameter in module.named_parameters(recurse=False):
                if parameter in seen or not parameter.requires_grad:
                    continue
                seen.add(parameter)
                if parameter.ndim == 2 and prefix.startswith("encoder.layers."):
                    by_blocks.setdefault(_blocks(module, f"{prefix}.{name}", parameter), []).append(parameter)
                else:
                    others.append(parameter)
        if not by_blocks:
            raise ValueError(
                f"no trainable matrix of {type(model).__name__} is called encoder.layers.*, which is what Muon moves; "
                "set optimizer.name to 'adamw'"
            )
        decay = self.settings.weight_decay
        groups: list[ParameterGroup] = [
            {"name": f"muon_{blocks}", "params": by_blocks[blocks], "weight_decay": decay, "blocks": blocks}
            for blocks in sorted(by_blocks)
        ]
        return [*groups, *self.decay_groups(others)]

    def num_moments(self, group: ParameterGroup) -> int:
        """Return Muon's one, or AdamW's two."""
        return 1 if group.get("blocks") is not None else 2

    def build(self, groups: list[dict[str, Any]]) -> "torch.optim.Optimizer":
        """Return both in one."""
        from zymogen.trainer.optimizer import muon

        if all(group.get("blocks") is None for group in groups):
            raise ValueError(
                "optimizer.name is 'muon', and no parameter group of the job has `blocks`, which Muon moves; return "
                "those of `kinds.parameter_groups`, or set optimizer.name to 'adamw'"
            )
        of = self.settings
        return muon.Muon(groups, momentum=of.momentum, newton_schulz=of.newton_schulz, betas=of.betas, eps=of.eps)


_FITS_FLOAT32 = ("torch.float32", "torch.bfloat16", "torch.float16")
"""Dtypes of moments that a checkpoint holds without losing a bit."""
_OWN: dict[str, type[OptimizerKind]] = {"adamw": AdamWKind, "muon": MuonKind}
assert set(_OWN) == set(OPTIMIZERS)


def optimizer_class(name: str) -> type[OptimizerKind]:
    """Return the class that `optimizer.name` names.

    Raises:
        ValueError: it is none of ours, and cannot be imported, or is no `OptimizerKind`.
    """
    return extension.load("optimizer.name", name, OptimizerKind, _OWN)  # type: ignore[type-abstract]


def optimizer_kind(settings: OptimizerSettings) -> OptimizerKind:
    """Return the optimizer of a recipe, its options checked.

    Raises:
        ValueError: as of `optimizer_class`; or an option is unknown or not allowed.
    """
    kind = optimizer_class(settings.name)
    if not extension.is_external(settings.name):
        return kind(settings, NoOptions())
    from zymogen.settings.toml_file import check_options  # which imports pydantic: a bare GPU machine lacks it

    return kind(settings, check_options(kind.Options, settings.options))


def parameter_groups(model: "nn.Module", settings: OptimizerSettings) -> list[ParameterGroup]:
    """Return the groups in which a recipe's optimizer moves the trainable parameters of a model."""
    return optimizer_kind(settings).parameter_groups(model)


def build_optimizer(groups: Iterable[ParameterGroup], settings: OptimizerSettings) -> "torch.optim.Optimizer":
    """Return the recipe's optimizer over a model's parameter groups.

    Raises:
        ValueError: it is the user's, and keeps something that no checkpoint can hold.
    """
    kind = optimizer_kind(settings)
    own = list(groups)
    if extension.is_external(settings.name):
        _require_storable(kind, own)
    return kind.build([dict(group) for group in own])


def num_stored(groups: Iterable[ParameterGroup], settings: OptimizerSettings) -> int:
    """Return how many numbers a checkpoint holds, in float32: the parameters that are moved, and their moments."""
    kind = optimizer_kind(settings)
    return sum(parameter.numel() * (1 + kind.num_moments(group)) for group in groups for parameter in group["params"])


def _require_storable(kind: OptimizerKind, groups: Sequence[ParameterGroup]) -> None:
    """Refuse an optimizer that keeps more than a step and tensors of a parameter's shape: no checkpoint holds it.

    It moves a small parameter in the place of those of each group.
    """
    import torch
    from torch import nn

    stand_ins: list[dict[str, Any]] = []
    for group in groups:
        is_matrix = any(parameter.ndim > 1 for parameter in group["params"])
        parameter = nn.Parameter(torch.zeros((2 * group.get("blocks", 1), 3) if is_matrix else (3,)))
        parameter.grad = torch.ones_like(parameter)
        stand_ins.append({**group, "params": [parameter]})
    optimizer = kind.build(stand_ins)
    for of in optimizer.param_groups:
        of["lr"] = 1e-3
    before = [{key: repr(value) for key, value in of.items() if key != "params"} for of in optimizer.param_groups]
    optimizer.step()
    said = (
        "a checkpoint holds a step and tensors of the parameter's shape alone, so that every engine can continue it: "
        "take an optimizer without factored moments and without state in its groups"
    )
    for of, earlier in zip(optimizer.param_groups, before, strict=True):
        for key, value in of.items():
            if key != "params" and repr(value) != earlier.get(key):
                raise ValueError(f"optimizer.name is {kind.settings.name!r}, which changes {key!r} of a group; {said}")
        for parameter in of["params"]:
            for key, value in optimizer.state[parameter].items():
                has_shape = torch.is_tensor(value) and value.shape == parameter.shape
                if key != "step" and value is not None and not (has_shape and str(value.dtype) in _FITS_FLOAT32):
                    got = f"{tuple(value.shape)} {value.dtype}" if torch.is_tensor(value) else type(value).__name__
                    raise ValueError(
                        f"optimizer.name is {kind.settings.name!r}, which keeps {key!r}, {got}, of a parameter of "
                        f"shape {tuple(parameter.shape)}; {said}"
                    )


def _blocks(owner: "nn.Module", name: str, matrix: "Tensor") -> int:
    blocks = getattr(owner, "blocks", 1)
    if not isinstance(blocks, int) or blocks < 1 or matrix.shape[0] % blocks:
        raise ValueError(
            f"{name} has {matrix.shape[0]} rows and its module says blocks = {blocks!r}; it must be the number of maps "
            "that are stacked by rows, which divides them"
        )
    return blocks
