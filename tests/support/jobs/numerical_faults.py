"""Runs whose numbers go wrong, by a fault of the hardware or of the data: variants for `wrong_engine.FAULTS`.

For the recipe of a run of seconds: its seed and bins of a step, one bin in a forward pass.
"""

import math
from collections.abc import Callable, Collection
from contextlib import AbstractContextManager
from itertools import count
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from torch import nn

from data.batches.loader import Step
from zymogen import keyed_random
from zymogen.trainer import loop
from zymogen.trainer.engine.engine import Engine
from zymogen.trainer.step import StepResult, train_step

BINS = 7
"""Bins of a step."""
BAD_BINS = (31, 37, 44)
"""One in each of the steps 5, 6 and 7."""


def number_of(step: Step) -> int:
    """The number of a step, from 1, which keys what the model draws in it."""
    key, bin_ = step.batches[0].draw_keys[0], step.bins[0]
    return next(n for n in count(1) if keyed_random.key(0, keyed_random.MODEL, n - 1, bin_) == key)


def trained_bins(step: Step) -> list[int]:
    """The numbers of the bins that this rank is to train in the step, over all steps."""
    first = (number_of(step) - 1) * BINS
    return [first + bin_ for bin_, batch in zip(step.bins, step.batches, strict=True) if batch.spans]


def poisoned(holds: Callable[[Step], bool]) -> AbstractContextManager[Any]:
    """Gradients of the steps for which it holds are not finite, on the rank for which it holds, under any engine."""

    def faulty(step: Step, model: nn.Module, optimizer: Any, engine: Engine, **how: Any) -> StepResult:
        if not holds(step):
            return train_step(step, model, optimizer, engine, **how)
        backward = type(engine).backward
        bad = mock.patch.object(type(engine), "backward", lambda self, of, loss: backward(self, of, loss * math.nan))
        with bad:
            return train_step(step, model, optimizer, engine, **how)

    return mock.patch.object(loop, "train_step", faulty)


def not_finite_once(steps: Collection[int] = (5, 6, 7)) -> AbstractContextManager[Any]:
    """Gradients of these steps are not finite, the first time that each is taken: as by a fault of the hardware."""
    left = set(steps)

    def holds(step: Step) -> bool:
        number = number_of(step)
        is_left = number in left
        left.discard(number)
        return is_left

    return poisoned(holds)


def bad_bins() -> AbstractContextManager[Any]:
    """Gradients are not finite wherever one of `BAD_BINS` is trained: as by a fault of the data."""
    return poisoned(lambda step: not set(BAD_BINS).isdisjoint(trained_bins(step)))


def bad_labels(bin_: int, nats: float = 4) -> AbstractContextManager[Any]:
    """The loss of a step in which this bin is trained is higher: as by a fault of the data."""

    def faulty(step: Step, *rest: Any, **how: Any) -> StepResult:
        result, is_trained = train_step(step, *rest, **how), torch.tensor(float(bin_ in trained_bins(step)))
        if dist.is_initialized():  # one rank has the bin, and the loss is that of all
            dist.all_reduce(is_trained)
        result.packed[-result.num_objectives :].view(torch.float64).add_(nats * is_trained)
        return result

    return mock.patch.object(loop, "train_step", faulty)
