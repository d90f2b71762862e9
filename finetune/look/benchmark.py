"""What a recipe takes on this machine, by 100 of its rows: `python -m finetune.look.benchmark RECIPE`.

In: a recipe. Out: one JSON object on standard output. Kept: the stores of proteins and labels, which a run
uses too; no run is written. The rows go through the job, the step and the engine of a run, whose weights are thrown
away. A process of its own, so that its memory is that of a run, and so that a model that is too large can be ended.
"""

import argparse
import json
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np

from data.order.plan import SPECIAL_TOKENS
from finetune.adaptation.features import CachedFeatures, vectors_of
from finetune.assays import open_on_every_rank
from finetune.ensemble import ensemble_members
from finetune.heads.input_scale import InputScale
from finetune.job import FineTuneJob
from finetune.look.estimate import ROWS
from finetune.recipe import Recipe
from pretrain.timing import timed_steps
from pretrain.trained_model import TrainedModel
from zymogen.command_line.command import make_main
from zymogen.command_line.parser import CommandParser
from zymogen.settings.toml_file import read
from zymogen.trainer.engine.engine import Engine
from zymogen.trainer.engine.launch import launch
from zymogen.trainer.telemetry.memory import most_bytes

_WARM, _STEPS_S = 4, 2.0
"""Proteins before the clock starts, in which memory is allocated; time in which training steps are timed."""


class BenchmarkJob(FineTuneJob):
    """The job of a run without what reads every protein: features are zeros, and heads read vectors as they are."""

    def _cached(self, start: TrainedModel) -> CachedFeatures | None:
        store, settings = self.assays.store, self.recipe.adaptation
        counts = {p: int(store.offsets[-1]) if p == "residue" else store.num_records for p in self.poolings()}
        if not counts or 4 * start.shape.dim * sum(counts.values()) > settings.cache_gb * 1e9:
            return None
        return CachedFeatures({p: np.zeros((count, start.shape.dim), np.float32) for p, count in counts.items()})

    def _inputs(self, before: object) -> dict[str, InputScale]:
        return {}


def benchmark(recipe: Recipe, engine: Engine) -> dict[str, object]:
    """Time 100 rows of a recipe.

    Args:
        recipe: what is timed; its stores are built if they are not there.
        engine: of one process.

    Returns:
        `rows`, the proteins that the encoder read for it; `encoder_tokens_per_s`, where nothing learns;
        `training_tokens_per_s` of training steps, which of a frozen encoder are those of the heads on features that are
        kept; `memory_bytes`, the most of the process: of a GPU by its tensors, else of the machine; `device`.

    Raises:
        ValueError: the recipe does not fit its table, or the model cannot be read.
    """
    recipe = replace(recipe, data=replace(recipe.data, workers=0))
    member = next(iter(ensemble_members(recipe, open_on_every_rank(recipe, engine))))
    rows = member.assays.drawn_of_training(recipe.run.seed, ROWS)
    documents = member.assays.reader.num_residues(rows) + SPECIAL_TOKENS
    job = BenchmarkJob(member.recipe, engine, member.assays)
    what = job.source, job.documents(), member.assays.reader, recipe.data
    for _ in vectors_of(*what, "mean", rows[:_WARM], engine.device):
        pass
    began = time.perf_counter()
    for _ in vectors_of(*what, "mean", rows, engine.device):
        pass
    encoder = float(documents.sum()) / (time.perf_counter() - began)
    least = 0 if recipe.adaptation.kind == "frozen" else int(documents.sum())
    training = timed_steps(member.recipe, lambda _recipe, _engine: job, engine, _STEPS_S, least)
    return {
        "rows": len(rows),
        "encoder_tokens_per_s": encoder,
        "training_tokens_per_s": training,
        "memory_bytes": most_bytes(engine.device),
        "device": engine.device.type,
    }


def _time(options: argparse.Namespace) -> None:
    recipe = read(Recipe, options.recipe, options.overrides)
    with launch(recipe) as engine:
        print(json.dumps(benchmark(recipe, engine)), flush=True)


def _options(parser: CommandParser) -> None:
    parser.add_argument("recipe", type=Path, help="a TOML file")
    parser.add_argument("overrides", nargs="*", help="settings on top of it, section.field=value")


main = make_main("finetune.look.benchmark", f"Time {ROWS} rows of a recipe; no run is written.", _options, _time)


if __name__ == "__main__":
    sys.exit(main())
