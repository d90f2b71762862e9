"""What the ranks hold together, read as torch and DeepSpeed say it and not by the code under test.

Also runs that print what they hold, and copies of a model that hold something else; for `wrong_engine`.
"""

import gc
import itertools
from contextlib import AbstractContextManager, ExitStack
from typing import Any
from unittest import mock

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

from pretrain.model import linear
from zymogen.trainer import loop
from zymogen.trainer.checkpoint.writer import StagingBuffer
from zymogen.trainer.engine import zero
from zymogen.trainer.engine.named_state import TorchState
from zymogen.trainer.engine.sharding_unit import autocast_weights


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


def say_copies_of_weights() -> AbstractContextManager[Any]:
    """No fault: each rank prints, at every step, how many copies of layers' weights wait for the backward pass.

    Products of bfloat16 are torch's own, as on a GPU, whatever this CPU can.
    """
    train_step = loop.train_step

    def watched(step: Any, model: Any, *rest: Any, **how: Any) -> Any:
        whole = [getattr(weight, "ds_shape", weight.shape) for weight in autocast_weights(model)]
        shapes = {tuple(shape)[::turn] for shape in whole for turn in (1, -1)}
        copies: list[torch.dtype] = []

        def keep(kept: Tensor) -> Tensor:
            gathered = [p for p in model.parameters() if not isinstance(p, DTensor)]
            own = {p.untyped_storage().data_ptr() for p in gathered}
            if tuple(kept.shape) in shapes and kept.untyped_storage().data_ptr() not in own:
                copies.append(kept.dtype)
            return kept

        with torch.autograd.graph.saved_tensors_hooks(keep, lambda kept: kept):
            result = train_step(step, model, *rest, **how)
        print(f"copies of weights: {len(copies)}, of {len(shapes)} shapes", flush=True)
        return result

    stack = ExitStack()
    stack.enter_context(mock.patch.object(linear, "EMULATES_BFLOAT16", False))
    stack.enter_context(mock.patch.object(loop, "train_step", watched))
    return stack


def norms_of_copies_differ() -> AbstractContextManager[Any]:
    """The second copy of the model (HSDP, of 2 ranks each) adds its gradients' squares up with another last bit."""
    total_norm = torch.nn.utils.get_total_norm

    def faulty(*arguments: Any, **how: Any) -> Tensor:
        norm: Tensor = total_norm(*arguments, **how)
        return norm * (1 + 2.0**-22) if torch.distributed.get_rank() >= 2 else norm

    return mock.patch.object(torch.nn.utils, "get_total_norm", faulty)


def say_state_bytes() -> AbstractContextManager[Any]:
    """No fault: each rank prints what it holds between the backward pass and the update of its third step.

    Once as torch's profiler counts it in this thread, DDP's buckets included, and once the storages of all tensors that
    Python knows. Of these the buffer in which DeepSpeed sums gradients, of one size for all models, is left out.
    """
    train_step, steps = loop.train_step, itertools.count(1)
    profiler = torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True)

    def watched(step: Any, model: Any, optimizer: Any, engine: Any, **how: Any) -> Any:
        update = type(engine).update

        def updated(*arguments: Any) -> Any:
            profiler.stop()
            events = profiler.profiler.kineto_results.events()
            allocated = sum(event.nbytes() for event in events if event.name() == "[memory]")
            print(f"bytes: {allocated} allocated, {_storages(leaving_out=4 * zero._BUCKET)} held", flush=True)
            return update(*arguments)

        with mock.patch.object(type(engine), "update", updated if next(steps) == 3 else update):
            return train_step(step, model, optimizer, engine, **how)

    stack = ExitStack()
    stack.enter_context(mock.patch.object(StagingBuffer, "make_ready"))  # what a save takes is another figure
    stack.enter_context(mock.patch.object(loop, "train_step", watched))
    profiler.start()
    return stack


def _storages(leaving_out: int) -> int:
    """Bytes of the storages of all tensors, and of the gradients of all leaves."""
    found: dict[int, int] = {}
    for tensor in [each for each in gc.get_objects() if isinstance(each, Tensor)]:
        for each in (tensor, tensor.grad if tensor.is_leaf else None):
            if each is not None:
                storage = (each._local_tensor if isinstance(each, DTensor) else each).untyped_storage()
                found[storage.data_ptr()] = storage.nbytes()
    return sum(size for size in found.values() if size != leaving_out)
