"""What the ranks hold together, read as torch and DeepSpeed say it and not by the code under test."""

from typing import Any

import torch
from torch.distributed.tensor import DTensor

from pretrain.engine.named_state import TorchState


def held(state: Any, name: str, key: str) -> torch.Tensor:
    """The whole tensor, on every rank."""
    if isinstance(state, TorchState):
        tensor = state._tensor(name, key).detach()
        return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
    import deepspeed
    from deepspeed.utils import safe_get_full_fp32_param, safe_get_full_optimizer_state

    parameter = state._parameters[name]
    if not parameter.requires_grad:
        if not state._is_cut:
            return parameter.detach()
        with deepspeed.zero.GatheredParameters([parameter]):
            return parameter.detach().clone()
    if not state._is_cut:  # DeepSpeed links moments to parameters when it takes a step
        state._zero._hp_optimizer_states_linked = False
        state._zero._lazy_init_hp_params_optimizer_state()
    return safe_get_full_fp32_param(parameter) if key == "param" else safe_get_full_optimizer_state(parameter, key)
