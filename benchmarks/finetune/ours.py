"""Our side of `benchmarks.finetune`: the whole of `python -m finetune`, timed from its first step to its last.

In: proteins, sizes. Out: CPU seconds, and the loss on proteins that were held out. Kept: what a run writes, in a
temporary folder. Reading the table, set-up, validation and checkpoints are not timed; nor are they on the other side.
"""

import contextlib
import csv
import io
import math
import os
import time
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from torch import Tensor, nn

from benchmarks.finetune.rows import Protein
from data.batches.loader import Loader, Step
from data.order.plan import Cursor
from finetune.assays import open_on_every_rank
from finetune.ensemble import ensemble_members
from finetune.job import FineTuneJob
from finetune.metrics.validation import FineTuneScores
from finetune.recipe import Recipe
from zymogen.onednn import ROWS
from zymogen.settings.toml_file import check
from zymogen.trainer.attempt import train
from zymogen.trainer.engine.launch import launch
from zymogen.trainer.step import StepResult

TASK = "location"
_TESTED = "MMMMM"
"""A split needs something to test; no run looks at it."""


class Sizes(NamedTuple):
    """What both sides agree on."""

    preset: str
    """Name in `PRESETS`."""
    crop: int
    """Longest protein, in tokens."""
    lora: bool
    batch_sequences: int
    """Proteins of a padded batch; our bins hold as many on average, so that both sides take as many steps."""
    classes: tuple[str, ...]
    peak_lr: float = 3e-4
    passes: int = 1
    seed: int = 0


class Trained(NamedTuple):
    """What a side needed and reached."""

    seconds: float
    """CPU seconds from the first step to the last."""
    tokens: int
    """Real tokens that were trained on."""
    slots: int
    """With pads."""
    steps: int
    loss: float
    """Mean cross-entropy of the proteins that were held out, nats."""
    accuracy: float
    """Share of them whose class is found."""


class TimedJob(FineTuneJob):
    """The job of every run, which looks at the clock when its loader is made and after each step."""

    began = ended = 0.0
    tokens = slots = steps = 0
    scores: FineTuneScores

    def loader(self, cursor: Cursor, first_step: int) -> Loader:
        """The same, once the clock was read."""
        loader = super().loader(cursor, first_step)
        self.began = time.process_time()
        return loader

    def flops(self, step: Step, result: StepResult) -> float:
        """The same; the loop asks after each step."""
        self.ended = time.process_time()
        self.tokens += step.num_tokens
        self.slots += sum(batch.tokens.numel() for batch in step.batches)
        self.steps += 1
        return super().flops(step, result)

    def evaluate(self, model: nn.Module) -> FineTuneScores:
        """The same, kept."""
        self.scores = super().evaluate(model)
        return self.scores


def recipe(sizes: Sizes, training: Sequence[Protein], held_out: Sequence[Protein], folder: Path) -> Recipe:
    """The recipe of a run on these proteins, whose table is written to the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "table.csv").open("w", newline="", encoding="ascii") as file:
        writer = csv.writer(file)
        writer.writerow(["sequence", TASK, "part"])
        for part, proteins in (("train", training), ("validation", held_out)):
            writer.writerows((protein.sequence, protein.label, part) for protein in proteins)
        writer.writerow([_TESTED, sizes.classes[0], "test"])
    tokens = sum(map(len, training))
    steps = max(1, round(len(training) / sizes.batch_sequences))
    slots = ROWS * math.ceil(max(1.01 * tokens / steps, sizes.crop) / ROWS)
    never = 10**9
    content: dict[str, Any] = {
        "run": {
            "directory": str(folder / "run"),
            "seed": sizes.seed,
            **dict.fromkeys(("evaluate_every", "log_every", "checkpoint_every"), never),
        },
        "model": {"preset": sizes.preset},
        "data": {
            "table": [str(folder / "table.csv")],
            "crop_tokens": sizes.crop,
            "bin_tokens": slots,
            "bins_per_step": 1,
            "unknown_letters": "count",
            "store_dir": str(folder / "stores"),
        },
        "tasks": [{"name": TASK, "type": "multiclass", "classes": list(sizes.classes)}],
        "split": {"by": "column", "column": "part"},
        "heads": {"form": "transformers"},
        "adaptation": {"kind": "lora", "head_lr": 1.0}
        if sizes.lora
        else {"kind": "full", "head_lr": 1.0, "layer_decay": 1.0},
        "schedule": {
            "passes": float(sizes.passes),
            "peak_lr": sizes.peak_lr,
            "warmup": 0.1,
            "decay_end": 1.0,
            "final_lr": 0.0,
        },
    }
    return check(Recipe, content, "benchmarks.finetune")


@contextlib.contextmanager
def quiet(precision: str = "no") -> Any:
    """Nothing is printed, and computed is in float32."""
    os.environ["ACCELERATE_MIXED_PRECISION"] = precision
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        yield


def first_weights(described: Recipe) -> Mapping[str, Tensor]:
    """The weights that a run begins with, by name."""
    with quiet(), launch(described) as engine:
        (member,) = ensemble_members(described, open_on_every_rank(described, engine))
        built = FineTuneJob(member.recipe, engine, member.assays).build(None)
        return {name: weight().clone() for name, weight in built.initializers.items()}


def train_ours(described: Recipe) -> Trained:
    """Train as the recipe says, and score the proteins that are held out."""
    with quiet(), launch(described) as engine:
        (member,) = ensemble_members(described, open_on_every_rank(described, engine))
        summary = train(member.recipe, partial(TimedJob, assays=member.assays), engine)
    job = summary.job
    assert isinstance(job, TimedJob)
    (task,) = job.scores.tasks.tasks
    found = task.values.get("accuracy", math.nan)
    loss = job.scores.losses[TASK]
    return Trained(job.ended - job.began, job.tokens, job.slots, job.steps, loss, found)
