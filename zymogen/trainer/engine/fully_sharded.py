"""FSDP2 and HSDP: parameters, gradients and moments are cut over ranks, a layer is whole while it computes.

In and out: as in `engine`. Kept: shards, as DTensors.
"""

from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from datetime import timedelta
from functools import partial
from math import prod
from typing import Any, cast

import torch
from accelerate.utils import DistributedType, FullyShardedDataParallelPlugin, fsdp2_prepare_model
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy
from torch.distributed.tensor import DTensor

from data.batches.batch import Batch
from zymogen.trainer.engine.engine import Engine, swap_parameters
from zymogen.trainer.engine.sharding_unit import ShardingUnit, sharding_units


class FullyShardedEngine(Engine):
    """FSDP2, in one group of ranks or, as HSDP, with copies of it."""

    distributed_types = frozenset({DistributedType.FSDP})

    @staticmethod
    def plugins(clip_norm: float) -> dict[str, Any]:
        """Accelerate's settings as in the launcher's YAML, except for precision, which `Engine` sets.

        Accelerate's own bf16 would also exchange gradients in bfloat16.
        """
        plugin = FullyShardedDataParallelPlugin(
            auto_wrap_policy="transformer_based_wrap",
            transformer_cls_names_to_wrap=[],  # `prepare` asks the model for them
            cpu_ram_efficient_loading=False,  # every rank allocates and fills its own part
        )
        plugin.mixed_precision_policy = MixedPrecisionPolicy()
        return {"fsdp_plugin": plugin}

    @property
    def name(self) -> str:
        """The engine's name, as recorded in checkpoints."""
        parallelism = self.accelerator.parallelism_config
        return "hsdp" if parallelism is not None and parallelism.dp_replicate_enabled else "fsdp2"

    @property
    def in_lockstep(self) -> bool:
        """Every rank holds a part of each layer."""
        return True

    def prepare(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> tuple[nn.Module, Any]:
        """Cut the model in place; its modules gather their parameters when they are called.

        `Accelerator.prepare` is not used for this: it recognises an optimizer's parameters by their address, which they
        do not have on the meta device.
        """
        names = {type(unit).__name__ for unit in sharding_units(model)}
        self.accelerator.state.fsdp_plugin.transformer_cls_names_to_wrap = sorted(names)
        with swap_parameters(optimizer, model):
            fsdp2_prepare_model(self.accelerator, model)
            if self.precision == "bf16":
                for unit in sharding_units(model):
                    _gather_weights_in_bfloat16(unit)
            self._allocate(model)
        _set_timeouts(model, self.timeout)
        for module in model.modules():
            if isinstance(module, FSDPModule):
                module.set_gradient_divide_factor(1.0)  # sums, not means
                module.set_force_sum_reduction_for_comms(True)
        return model, self.accelerator.prepare_optimizer(optimizer)

    def warm_up(self, model: nn.Module, batch: Batch) -> None:
        """Do nothing: every step reduces the same groups, the first one too."""

    def accumulating(self, model: nn.Module, *, last: bool) -> AbstractContextManager[None]:
        """Gradients are cut with every micro-batch, because whole ones would fill the memory that sharding freed.

        Copies (HSDP) exchange theirs with the last.
        """
        assert isinstance(model, FSDPModule)
        model.set_is_last_backward(last)
        model.set_requires_all_reduce(last)
        return nullcontext()

    def _clip(self, model: nn.Module, clip_norm: float) -> Tensor:
        """Clip by one sum over all ranks: copies (HSDP) whose own sums differed in a bit would part."""
        parameters = [p for p in model.parameters() if isinstance(p.grad, DTensor)]
        own = torch.nn.utils.get_total_norm([cast(DTensor, p.grad).to_local() for p in parameters])
        copies = prod(cast(DTensor, parameters[0]).device_mesh.shape[:-1])
        norm = (self.sum_over_ranks(own.double().square()) / copies).sqrt().float()
        torch.nn.utils.clip_grads_with_norm_(parameters, clip_norm, norm)
        return norm


def _gather_weights_in_bfloat16(unit: ShardingUnit) -> None:
    """Gather the weights of a layer's linear maps in bfloat16, and its norms and biases in float32, in one message.

    The weights are rounded as autocast would round them, so that it makes no copies. FSDP2 has one policy for a module,
    whose biases are in the modules of the weights; each parameter is given its own here. Gradients are sums in float32.
    """
    group: Any = cast(FSDPModule, unit)._get_fsdp_state()._fsdp_param_group
    group.mp_policy = MixedPrecisionPolicy(torch.bfloat16, reduce_dtype=torch.float32)
    whole = replace(group.mp_policy, param_dtype=None)
    weights = set(unit.autocast_weights())
    for parameter in group.fsdp_params:
        if parameter.sharded_param in weights:  # its gradient is float32 before it is sent with the others
            parameter.accumulate_unsharded_grad_if_needed = parameter.to_accumulated_grad_if_needed
        else:
            parameter.init_dtype_attrs = partial(lambda own, _: own(whole), parameter.init_dtype_attrs)


def _set_timeouts(model: nn.Module, timeout: timedelta) -> None:
    """Give the process groups of a sharded model the run's timeout.

    HSDP's are made by `init_device_mesh`, which has no argument for it: torch would give them 10 minutes under NCCL.
    """
    for mesh in {p.device_mesh for p in model.parameters() if isinstance(p, DTensor)}:
        for group in mesh.get_all_groups():
            group.set_timeout(timeout)
