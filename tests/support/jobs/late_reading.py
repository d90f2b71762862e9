"""Ranks that read the results of a step late, as on a GPU: variants for `wrong_engine.FAULTS`, none of them a fault."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pretrain.step
from pretrain import loop
from pretrain.step import InFlightSteps, StepFlags


def told_by_reading() -> AbstractContextManager[Any]:
    """Ranks learn of a signal from the results of a step alone, as they do on GPUs."""
    return mock.patch.object(pretrain.step, "signals", SimpleNamespace(raise_if_flagged=lambda words: None))


@contextmanager
def one_step_ahead() -> Iterator[None]:
    """Fails at the end if the host was never one step ahead of what it had read, or further."""
    queued = []

    class Counted(InFlightSteps):
        def read(self, *, all_of_them: bool) -> StepFlags:
            queued.append(len(self))
            return super().read(all_of_them=all_of_them)

    with mock.patch.object(loop, "InFlightSteps", Counted):
        yield
    assert max(queued) == 2, queued
