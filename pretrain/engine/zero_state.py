"""State by name under ZeRO, where one flat float32 tensor per parameter group holds this rank's part of every tensor.

In: DeepSpeed's engine. Out: whole tensors, one at a time. Kept: nothing of its own.

The only module that knows DeepSpeed's internals: `fp32_partitioned_groups_flat`, `single_partition_of_fp32_groups` and
others have no public form. DeepSpeed's version is bounded in setup.cfg, and the resume matrix of the tests guards them.
"""

from collections.abc import Mapping, Sequence
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn

from pretrain.engine.named_state import named_parameters, prime, require_held, require_no_buffers


class ZeroState:
    """State of ZeRO-1, 2 and 3.

    Args:
        engine: the `DeepSpeedEngine` that `Accelerator.prepare` returned.

    Raises:
        ValueError: a trainable parameter is held by no optimizer, or there is state that named fp32 tensors cannot
            carry.
    """

    def __init__(self, engine: nn.Module) -> None:
        self._parameters, self._aliases = named_parameters(engine)
        self._zero = cast(Any, engine).optimizer
        self._inner: torch.optim.Optimizer = self._zero.optimizer
        self._steps: dict[int, int] = {}
        self._is_linked = False
        self._is_cut = hasattr(self._zero, "fp32_partitioned_groups_flat")  # stage 3: the parameters too
        if self._is_cut:
            self._flats, groups = self._zero.fp32_partitioned_groups_flat, self._zero.fp16_groups
        else:
            self._flats, groups = self._zero.single_partition_of_fp32_groups, self._zero.bit16_groups
        self._flat_of = {id(p): index for index, group in enumerate(groups) for p in group}
        require_held(self._parameters, self._flat_of.keys())
        require_no_buffers(engine, self._parameters.keys() | self._aliases.keys())
        frozen = [name for name, p in self._parameters.items() if not p.requires_grad]
        if frozen:
            raise ValueError(
                f"{len(frozen)} parameters are frozen, such as {frozen[0]!r}, and DeepSpeed's partitions leave those "
                "out; train them, or use accelerate_configs/fsdp2.yaml"
            )

    @property
    def names(self) -> Sequence[str]:
        """Parameter names in module order, tied ones once."""
        return tuple(self._parameters)

    @property
    def aliases(self) -> Mapping[str, str]:
        """Second names of tied parameters -> the name they are stored under."""
        return dict(self._aliases)

    def shape(self, name: str) -> tuple[int, ...]:
        """Shape of a parameter and of each of its moments."""
        parameter = self._parameters[name]
        return tuple(getattr(parameter, "ds_shape", parameter.shape))

    def moments(self, name: str) -> list[str]:
        """Sorted keys of the moments; empty before the first step.

        Raises:
            ValueError: the optimizer keeps something else than a step and tensors of its partition's shape.
        """
        self._link()
        flat, keys = self._flat(name), []
        for key, value in self._cell(name).items():
            if key == "step" or value is None:
                continue
            if not torch.is_tensor(value) or value.shape != flat.shape:
                got = tuple(value.shape) if torch.is_tensor(value) else type(value).__name__
                raise ValueError(
                    f"optimizer state {key!r} of {name!r} is {got}; only a step and tensors of the partition's shape "
                    f"{tuple(flat.shape)} can be stored by name"
                )
            keys.append(key)
        return sorted(keys)

    def step_of(self, name: str) -> int:
        """How many times the optimizer moved the partition that this parameter is part of."""
        return int(self._cell(name).get("step", 0))

    def gather(self, name: str, key: str) -> Tensor:
        """Whole fp32 tensor on the CPU; collective."""
        from deepspeed.utils import safe_get_full_fp32_param, safe_get_full_optimizer_state

        parameter = self._parameters[name]
        if key == "param":
            full = safe_get_full_fp32_param(parameter)
        else:
            full = safe_get_full_optimizer_state(parameter, key)
        return cast(Tensor, full.detach().to("cpu", torch.float32))

    def begin_load(self) -> None:
        """Allocate the moments of partitions that have none yet: zeros, at step 0."""
        # Between steps, stage 3 keeps the optimizer's groups empty and puts a partition in when it is its turn.
        if self._is_cut:
            of_group: list[list[Tensor]] = [[] for _ in self._inner.param_groups]
            for index, flat in enumerate(self._flats):
                of_group[self._zero.sub_group_to_group_id[index]].append(flat)
        else:
            of_group = [[flat] for flat in self._flats]
        before = [group["params"] for group in self._inner.param_groups]
        try:
            for group, flats in zip(self._inner.param_groups, of_group, strict=True):
                group["params"] = flats
            prime(self._inner, [flat for flat in self._flats if not self._inner.state.get(flat)])
        finally:
            for group, parameters in zip(self._inner.param_groups, before, strict=True):
                group["params"] = parameters
        self._steps.clear()
        self._link()

    @torch.no_grad()
    def scatter(self, name: str, key: str, full: Tensor) -> None:
        """Copy this rank's part of a whole tensor into place."""
        from deepspeed import utils

        if tuple(full.shape) != self.shape(name):
            raise ValueError(f"{key} of {name!r}: {tuple(full.shape)} into {self.shape(name)}")
        parameter: Any = self._parameters[name]
        if not self._is_cut:
            if key == "param":
                utils.safe_set_full_fp32_param(parameter, full)
            else:
                utils.safe_set_full_optimizer_state(parameter, full, key)
            return
        # Not safe_set_full_*: it overruns the last partition, which is padded where the size does not divide.
        size, rank = parameter.ds_tensor.numel(), dist.get_rank(group=parameter.ds_process_group)
        mine = full.flatten()[rank * size : (rank + 1) * size]
        part = torch.zeros(size, dtype=torch.float32)
        part[: mine.numel()] = mine
        if key == "param":
            utils.safe_set_local_fp32_param(parameter, part)
        else:
            utils.safe_set_local_optimizer_state(parameter, part, key)

    def set_step(self, name: str, step: int) -> None:
        """Set the step of the partition that this parameter is part of.

        Raises:
            ValueError: another parameter of the partition has another step.
        """
        cell = self._cell(name)
        if "step" not in cell:
            if step:
                raise ValueError(f"the optimizer counts no steps for {name!r}; got step {step}")
            return
        known = self._steps.setdefault(self._flat_of[id(self._parameters[name])], step)
        if known != step:
            raise ValueError(
                f"{name!r} was moved {step} times and others of its partition {known} times; ZeRO keeps one count for "
                "all: continue this run with accelerate_configs/fsdp2.yaml or ddp.yaml"
            )
        if torch.is_tensor(cell["step"]):
            cell["step"].fill_(step)
        else:
            cell["step"] = step

    @torch.no_grad()
    def end_load(self) -> None:
        """Copy the masters into the weights that the forward pass reads; collective."""
        if not self._is_cut:
            self._zero.update_lp_params()
            return
        self._zero.checkpoint_event_prologue()  # lets go of the small parameters, which are always whole
        for index in range(len(self._flats)):
            self._zero._reassign_or_swap_out_partitioned_parameters(index)
        self._zero.checkpoint_event_epilogue()  # and gathers them again, now with the new values

    def _link(self) -> None:
        """Point every parameter at its slice of the moments.

        DeepSpeed does it after its first *group* stepped, and leaves the later groups without.
        """
        if self._is_cut or self._is_linked or not all(self._inner.state.get(flat) for flat in self._flats):
            return
        self._zero._hp_optimizer_states_linked = False
        self._zero._lazy_init_hp_params_optimizer_state()
        self._is_linked = True

    def _flat(self, name: str) -> Tensor:
        return cast(Tensor, self._flats[self._flat_of[id(self._parameters[name])]])

    def _cell(self, name: str) -> dict[str, Any]:
        return cast(dict[str, Any], self._inner.state.get(self._flat(name), {}))
