"""A run inside a process that goes on: what it changes there is forgotten, so that the next one finds a fresh one.

Engines keep process groups, meshes and counters in globals, and one that meets those of a group that is gone fails, or
computes something else. What had to be forgotten was found by leaving it out.
"""

import copy
import gc
import importlib
import os
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any
from unittest import mock

from zymogen.trainer.telemetry import peak


def measure_peak_once() -> None:
    """From now on runs in this process share what a matrix product takes: 0.4 s of a start, and always the same."""
    if not hasattr(peak.measured_peak, "cache_info"):
        peak.measured_peak = cache(peak.measured_peak)


@contextmanager
def forgotten(variables: dict[str, str]) -> Iterator[None]:
    """A run in this environment; what it changes in its process is then made as it was before."""
    import torch
    import torch.distributed as dist
    import torch.nn.functional as F
    from accelerate.state import AcceleratorState, GradientState

    before, random_state = dict(os.environ), torch.get_rng_state()
    functions = F.linear, F.embedding
    os.environ.update(variables)
    if "ACCELERATE_USE_DEEPSPEED" in variables:
        # Named, as the program would do: else each process warns that it found no GPU.
        with mock.patch.dict(os.environ, {} if torch.cuda.is_available() else {"DS_ACCELERATOR": "cpu"}):
            importlib.import_module("deepspeed")
    unused = _deepspeed_unused() if "deepspeed" in sys.modules else []
    with warnings.catch_warnings():  # which also lets Python give a warning again that it has given once
        yield
    os.environ.clear()
    os.environ.update(before)
    torch.set_rng_state(random_state)
    gc.collect()  # DDP holds the process group
    if dist.is_initialized():
        dist.destroy_process_group()
    AcceleratorState._reset_state(reset_partial_state=True)
    GradientState._reset_state()
    _forget_meshes()
    torch._dynamo.reset()
    _forget_deepspeed(unused)
    F.linear, F.embedding = functions  # which ZeRO stage 3 replaces for good
    gc.collect()
    gc.freeze()


def _forget_meshes() -> None:
    """DTensor remembers how it moved shards by meshes that equal the next run's, and whose groups are gone."""
    from torch.distributed.tensor import _random, _redistribute
    from torch.distributed.tensor.debug import _clear_sharding_prop_cache

    _clear_sharding_prop_cache()
    _redistribute.clear_redistribute_planner_cache()
    _redistribute._gen_transform_infos.cache_clear()
    _random._rng_tracker = None


@cache
def _deepspeed_unused() -> list[tuple[Any, dict[str, tuple[Any, Any]]]]:
    """DeepSpeed's modules and classes with the values that they hold before anything has used them.

    It keeps its backend, its groups and more in globals of a dozen modules, and forgets them only where it is asked to
    destroy the process group; Accelerate asks torch.
    """
    modules = [module for name, module in sys.modules.items() if name.partition(".")[0] == "deepspeed"]
    classes = [
        value
        for module in modules
        for value in vars(module).values()
        if isinstance(value, type) and value.__module__ == module.__name__
    ]
    plain = (type(None), bool, int, float, str, list, dict, set)
    return [
        (
            namespace,
            {
                name: (value, copy.copy(value))
                for name, value in vars(namespace).items()
                if type(value) in plain and not name.startswith("__")
            },
        )
        for namespace in (*modules, *classes)
    ]


def _forget_deepspeed(unused: list[tuple[Any, dict[str, tuple[Any, Any]]]]) -> None:
    for namespace, values in unused:
        for name, (value, content) in values.items():
            if vars(namespace).get(name) is not value:
                setattr(namespace, name, value)
            if isinstance(value, list):
                value[:] = content
            elif isinstance(value, dict | set):
                value.clear()
                value.update(content)
    if unused:
        # ZeRO stage 3 numbers modules for as long as the process lives, and compares the numbers over ranks.
        from deepspeed.runtime.zero.parameter_offload import DeepSpeedZeRoOffload

        DeepSpeedZeRoOffload._register_deepspeed_module.__defaults__[0][:] = [0]
