"""Pretraining that trains some parameters alone, as a job would that fine-tunes: variants for `wrong_engine.FAULTS`."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from typing import Any, ClassVar
from unittest import mock

import torch

from pretrain import job as pretraining_job
from pretrain.evaluate.scores import MaskedLanguageScores
from pretrain.job import PretrainingJob
from pretrain.model.build import build_initialized
from support.held_state import held
from zymogen.trainer import attempt
from zymogen.trainer.job import ModelBundle
from zymogen.trainer.loop import Trainer
from zymogen.trainer.run.directory import RunDirectory

Choice = Callable[[int, str], bool]
"""Whether the parameter of this number and name is frozen."""


class PartlyFrozenJob(PretrainingJob):
    """The frozen parameters come from where a run's first weights come from, whenever it is continued or exported."""

    is_frozen: ClassVar[Choice]

    def build(self, described: Mapping[str, Any] | None) -> ModelBundle:
        """The model, some of it frozen."""
        built = super().build(described)
        for number, (name, parameter) in enumerate(built.model.named_parameters()):
            parameter.requires_grad_(not self.is_frozen(number, name))
        self.initializers = build_initialized(self.recipe.model, self.recipe.run.seed)[1]
        return replace(built, initializers=self.initializers)

    def publish(self, run: RunDirectory) -> None:
        """With the frozen parameters, which the checkpoint lacks."""
        from pretrain.export.export import last_export

        last_export(run, self.initializers)


@contextmanager
def frozen(choice: Choice) -> Iterator[None]:
    """No fault: those are frozen. At the end of the run they must be as they came, on every rank."""
    finish = attempt.finish

    def compared(trainer: Trainer[MaskedLanguageScores]) -> MaskedLanguageScores:
        named = trainer.engine.named_state(trainer.model, trainer.optimizer)
        for name in named.frozen:
            assert torch.equal(held(named, name, "param").cpu(), trainer.job.initializers[name]()), name
        print(f"frozen: {len(named.frozen)} parameters are as they came", flush=True)
        return finish(trainer)

    chosen = type("ChosenJob", (PartlyFrozenJob,), {"is_frozen": staticmethod(choice)})
    with (
        mock.patch.object(pretraining_job, "PretrainingJob", chosen),
        mock.patch.object(attempt, "finish", compared),
    ):
        yield


def every_second_frozen() -> AbstractContextManager[None]:
    """The embedding and the biases of the layers, among others; there are all shapes on both sides."""
    return frozen(lambda number, _: number % 2 == 0)


def every_other_second_frozen() -> AbstractContextManager[None]:
    """The matrices of the layers, among others."""
    return frozen(lambda number, _: number % 2 == 1)


def bottom_frozen() -> AbstractContextManager[None]:
    """The embedding and the first layer: what reaches the second needs no gradient."""
    return frozen(lambda _, name: name.startswith(("encoder.embedding", "encoder.layers.0")))


def all_but_matrices_frozen() -> AbstractContextManager[None]:
    """As where adapters are trained: the optimizer's group of vectors is empty."""
    return frozen(lambda _, name: not (name.startswith("encoder.layers") and "weight" in name and "norm" not in name))
