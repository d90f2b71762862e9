"""The length job with a selection: the best checkpoint is kept, and several runs are trained one after the other.

    main(["recipe.toml", "section.field=value", ..., "wait=2", "first=1", "seeds=3"])

The last words are optional: the patience, the seed of the first run, and how many runs there are.
"""

import gc
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from torch import nn

from pretrain.recipe import Recipe
from support.jobs.length_job import LengthJob, LengthModel, LengthScores
from zymogen.processes.signals import handle_signals
from zymogen.settings.toml_file import read
from zymogen.trainer.attempt import train
from zymogen.trainer.checkpoint.best import best_valid
from zymogen.trainer.engine.engine import Engine
from zymogen.trainer.engine.launch import launch
from zymogen.trainer.run.directory import RunDirectory

OWN = ("wait", "first", "seeds")


class BestJob(LengthJob):
    """Publishes the name of the best checkpoint."""

    def __init__(self, recipe: Recipe, engine: Engine, *, patience: int | None) -> None:
        super().__init__(recipe, engine)
        self._patience = patience

    keeps_best = True

    @property
    def patience(self) -> int | None:
        return self._patience

    def evaluate(self, model: nn.Module) -> LengthScores:
        self.engine.raise_if_interrupted()
        return super().evaluate(model)

    def publish(self, run: RunDirectory) -> None:
        run.export.mkdir(exist_ok=True)
        (run.export / "best").write_text(best_valid(run.checkpoints).path.name)


def main(arguments: Sequence[str]) -> int:
    """Train; each run in a folder of its own, named after its seed."""
    words = [word.partition("=") for word in arguments[1:]]
    own = {name: int(value) for name, _, value in words if name in OWN}
    recipe = read(Recipe, Path(arguments[0]), ["".join(word) for word in words if word[0] not in OWN])
    first = own.get("first", 0)
    with handle_signals(), launch(recipe) as engine:
        for seed in range(first, first + own.get("seeds", 1)):
            run = replace(recipe.run, seed=seed, directory=f"{recipe.run.directory}{seed or ''}")
            train(replace(recipe, run=run), partial(BestJob, patience=own.get("wait")), engine)
            models = sum(isinstance(each, LengthModel) for each in gc.get_objects())
            print(f"rank {engine.rank}: {models} models are left, and {len(engine.accelerator.trackers)} trackers")
    return 0
