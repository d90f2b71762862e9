"""Ranks that read the results of a step late, as on a GPU: variants for `wrong_engine.FAULTS`, none of them a fault."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from types import SimpleNamespace
from typing import Any
from unittest import mock

import zymogen.trainer.step
from data.batches.loader import Step
from zymogen.trainer import loop
from zymogen.trainer.step import InFlightSteps, StepResult


def told_by_reading() -> AbstractContextManager[Any]:
    """Ranks learn of a signal from the results of a step alone, as they do on GPUs."""
    return mock.patch.object(zymogen.trainer.step, "signals", SimpleNamespace(raise_if_flagged=lambda flag: None))


@contextmanager
def one_step_ahead() -> Iterator[None]:
    """Fails at the end if the host was never one step ahead of what it had read, or further."""
    queued = []

    class Counted(InFlightSteps):
        def push(self, step: Step, result: StepResult, learning_rate: float) -> None:
            super().push(step, result, learning_rate)
            queued.append(len(self))

    with mock.patch.object(loop, "InFlightSteps", Counted):
        yield
    assert max(queued) == 2, queued
