"""One rank of a measured run: the program itself, with a profiler around some of its steps.

    accelerate launch --config_file FILE -m benchmarks.communication.rank RESULTS RECIPE section.field=value ...

In: a recipe. Out: `RESULTS`, a JSON file of what each rank did. Kept: nothing, not even a checkpoint.
"""

import json
import sys
import time
from collections.abc import Iterator
from math import prod
from pathlib import Path
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from torch.profiler import ProfilerActivity, profile, record_function

from data.batches.loader import Step
from pretrain.job import PretrainingJob
from pretrain.recipe import Recipe
from zymogen.settings.toml_file import read
from zymogen.trainer import attempt, loop
from zymogen.trainer.engine.engine import Engine
from zymogen.trainer.engine.launch import launch
from zymogen.trainer.step import StepResult, train_step

WARM_UP, TIMED, PROFILED = 2, 3, 3
"""Numbers of steps, in this order. The profiler slows a step down, so that steps are timed without it."""
STEPS = WARM_UP + TIMED + PROFILED
MICRO_BATCHES = 2
"""Micro-batches of every rank in every step."""
MARK = "one whole step"

WHOLE = {
    "allreduce_": ("all_reduce", 0),
    "allreduce_coalesced_": ("all_reduce", 0),
    "_allgather_base_": ("all_gather", 0),
    "allgather_into_tensor_coalesced_": ("all_gather", 0),
    "_reduce_scatter_base_": ("reduce_scatter", 1),
    "reduce_scatter_tensor_coalesced_": ("reduce_scatter", 1),
    "alltoall_base_": ("all_to_all", 1),
    "reduce_": ("reduce", 0),
    "broadcast_": ("broadcast", 0),
}
"""Operators that every collective of torch ends in: kind, and which argument is the whole tensor, an all-gather's
output or a reduce-scatter's input."""


class Watch:
    """Takes the place of `train_step`, and times or profiles it."""

    def __init__(self) -> None:
        self.seconds: list[float] = []
        self.profiler: Any = None

    def __call__(self, step: Step, model: torch.nn.Module, optimizer: Any, engine: Engine, **how: Any) -> StepResult:
        """Take one step, and wait for its result."""
        if len(step.batches) != MICRO_BATCHES or step.max_micro_batches != MICRO_BATCHES:
            raise ValueError(f"{len(step.batches)} micro-batches of {step.max_micro_batches}; must be {MICRO_BATCHES}")
        if len(self.seconds) == WARM_UP + TIMED:
            activities = [ProfilerActivity.CPU, *[ProfilerActivity.CUDA] * (engine.device.type == "cuda")]
            self.profiler = profile(activities=activities, record_shapes=True)
            self.profiler.start()
            dist.barrier()  # one rank's profiler starts later than another's
        started = time.perf_counter()
        with record_function(MARK):
            result = train_step(step, model, optimizer, engine, **how)
            result.to_host()
        self.seconds.append(time.perf_counter() - started)
        if len(self.seconds) == STEPS:
            self.profiler.stop()
        return result

    def results(self) -> dict[str, Any]:
        """Seconds of the timed steps; bytes, calls and seconds of the profiled ones."""
        # Read as torch's own memory profiler does, because only this tree has dtypes for arguments that are lists.
        traced = self.profiler.profiler.kineto_results
        events = traced.events()
        marks = [(e.start_ns(), e.end_ns()) for e in events if e.name() == MARK and e.device_type().name == "CPU"]
        flights = sorted((e.start_ns(), e.end_ns()) for e in events if _is_transfer(e))
        calls = list(_collectives(traced.experimental_event_tree()))
        steps = []
        for start, end in marks:
            by_kind: dict[str, list[int]] = {}
            for when, kind, size in calls:
                if start <= when < end:
                    by_kind.setdefault(kind, []).append(size)
            of_step = [(first, last) for first, last in flights if start <= first < end]
            steps.append({"seconds": (end - start) / 1e9, "in_flight": _union(of_step) / 1e9, "sizes": by_kind})
        return {"seconds": self.seconds[WARM_UP : WARM_UP + TIMED], "steps": steps}


def _collectives(tree: Any) -> Iterator[tuple[int, str, int]]:
    """Start, kind and bytes of every collective, without those that it calls itself."""
    nodes = list(tree)
    while nodes:
        node = nodes.pop()
        if not node.name.startswith("c10d::"):
            nodes += node.children
        elif node.name != "c10d::barrier":
            kind, index = WHOLE[node.name.removeprefix("c10d::")]  # an operator that is missing must be added
            whole = node.extra_fields.inputs[index]
            tensors = whole if isinstance(whole, list) else [whole]
            yield node.start_time_ns, kind, sum(prod(t.sizes) * t.dtype.itemsize for t in tensors)


def _is_transfer(event: Any) -> bool:
    """Whether an event is an exchange: gloo's, from the call to the result, or a kernel of NCCL on a GPU."""
    name: str = event.name()
    return name.startswith("gloo:") or (name.startswith("nccl") and event.device_type().name == "CUDA")


def _union(spans: list[tuple[int, int]]) -> int:
    """Total length that sorted spans cover."""
    covered = reached = 0
    for start, end in spans:
        covered += max(0, end - max(start, reached))
        reached = max(reached, end)
    return covered


def main(arguments: list[str]) -> int:
    """Train under the watch; rank 0 writes what every rank measured."""
    results, recipe_file, *overrides = arguments
    recipe, watch = read(Recipe, Path(recipe_file), overrides), Watch()
    with launch(recipe) as engine:
        with (
            mock.patch.object(loop, "train_step", watch),
            mock.patch.object(loop.Trainer, "save"),
            mock.patch.object(attempt, "finish", return_value={}),
        ):
            attempt.train(recipe, PretrainingJob, engine)
        every = engine.gather(watch.results())
        if engine.is_main:
            Path(results).write_text(json.dumps({"device": engine.device.type, "ranks": every}))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
