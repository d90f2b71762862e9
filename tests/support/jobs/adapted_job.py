"""The job of `length_job` on an encoder that is frozen, adapted, or trained whole.

accelerate launch ... -m support.jobs.adapted_job recipe.toml adaptation.kind=lora adaptation.rank=4
"""

import sys
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import nn

from finetune.adaptation.adapt import adapt, initializers
from finetune.adaptation.groups import parameter_groups
from finetune.adaptation.lora import plan_of
from finetune.adaptation.settings import AdaptationSettings
from pretrain.model.build import build_meta
from pretrain.model.initialization import initial_weights
from pretrain.model.presets import PRESETS, EsmShape
from pretrain.recipe import Recipe
from support.jobs.length_job import LengthJob, LengthModel
from zymogen.processes.fresh_process import run_command
from zymogen.settings.toml_file import check, overridden, read
from zymogen.trainer.attempt import train
from zymogen.trainer.engine.launch import launch
from zymogen.trainer.job import ModelBundle
from zymogen.trainer.optimizer.kinds import ParameterGroup
from zymogen.trainer.run.directory import RunDirectory

BASE_SEED = 77
"""Seed of the encoder that stands for a pretrained one."""


class AdaptedLengthJob(LengthJob):
    """How long a protein is, learned on a pretrained encoder."""

    settings: ClassVar[AdaptationSettings]

    def build(self, described: Mapping[str, Any] | None) -> ModelBundle:
        """The model with its adapters; its base comes from one place whenever it is built."""
        self.shape = EsmShape(**described) if described else PRESETS[str(self.recipe.model.preset)]
        with torch.device("meta"):
            model = LengthModel(self.shape)
        plan = plan_of(self.settings, self.shape) if self.settings.kind == "lora" else None
        adapt(model, self.settings, plan)
        base = initial_weights(build_meta(self.shape), BASE_SEED)
        encoder = {name: weight for name, weight in base.items() if name.startswith("encoder.")}
        first = initializers(model, encoder, self.recipe.run.seed, plan)
        return ModelBundle(model, asdict(self.shape), first, self.shape.dim)

    def parameter_groups(self, model: nn.Module) -> list[ParameterGroup]:
        """Adapters and heads, or all."""
        return parameter_groups(model, self.settings, self.recipe.optimizer)

    def publish(self, run: RunDirectory) -> None:
        """Nothing."""


def main(arguments: list[str]) -> int:
    """Train as the recipe and the words `adaptation.*` say; the exit status."""
    words = [word.removeprefix("adaptation.") for word in arguments if word.startswith("adaptation.")]
    AdaptedLengthJob.settings = check(AdaptationSettings, overridden({}, words), "words")
    recipe = read(Recipe, Path(arguments[0]), [word for word in arguments[1:] if not word.startswith("adaptation.")])
    with launch(recipe) as engine:
        summary = train(recipe, AdaptedLengthJob, engine)
        if engine.is_main:
            print(summary.scores.line())
    return 0


if __name__ == "__main__":
    run_command(lambda: main(sys.argv[1:]))
