"""One run of `benchmarks.assays`: trained, tested with its best checkpoint, and beside it every baseline.

In: a recipe. Out: an `Outcome`. Kept: the run directory and the stores that the recipe names.
"""

import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import ParamSpec, TypeVar

import numpy as np
import torch

from data.alphabet import FASTA_LETTERS
from finetune.adaptation.features import Documents, Pooling, cached_features
from finetune.assays import open_on_every_rank
from finetune.baselines.baseline import Baseline, Parts, constant
from finetune.baselines.features import Features, sequence_features, windows
from finetune.baselines.nearest import nearest_neighbour
from finetune.baselines.ridge import linear
from finetune.evaluate import predict
from finetune.job import FineTuneJob
from finetune.members import members
from finetune.metrics.scores import Scores
from finetune.metrics.scoring import score
from finetune.recipe import Recipe
from finetune.splits.parts import TEST, TRAIN, VALIDATION
from pretrain.checkpoint.best import best_valid
from pretrain.checkpoint.tensors import TensorReader
from pretrain.engine.launch import launch
from pretrain.loop import train
from pretrain.run.directory import RunDirectory

T = TypeVar("T")
P = ParamSpec("P")


@dataclass
class Outcome:
    """What a run and the baselines are worth on the test part."""

    scores: Scores
    beside: dict[str, Scores]
    how: dict[str, str]
    """How each baseline was made."""
    seconds: dict[str, float] = field(default_factory=dict)
    """Wall time of each phase; that of alignments by MMseqs2 under a name of its own."""


class Stopwatch:
    """Wall time by phase."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    def add(self, phase: str, seconds: float) -> None:
        """Count further seconds of a phase."""
        self.seconds[phase] = self.seconds.get(phase, 0.0) + seconds

    def time(self, phase: str, work: Callable[P, T], *args: P.args, **named: P.kwargs) -> T:
        """Do something, and count how long it took."""
        began = time.perf_counter()
        done = work(*args, **named)
        self.add(phase, time.perf_counter() - began)
        return done


def measure(recipe: Recipe) -> Outcome:
    """Train what a recipe describes, and score it and the baselines on the test part."""
    watch = Stopwatch()
    with launch(recipe) as engine:
        assays = watch.time("reading", open_on_every_rank, recipe, engine)
        (member,) = members(recipe, assays)
        summary = watch.time("training", train, member.recipe, partial(FineTuneJob, assays=member.assays), engine)
        job = summary.job
        assert isinstance(job, FineTuneJob)
        model, test = best_model(job, summary.run), member.assays.records(TEST)
        found, _ = watch.time("testing", predict, model, member.assays, job.tasks, test, recipe.losses, engine)
    groups = member.assays.parts.group
    scores, each, how = [], defaultdict(list), defaultdict(list)
    for number, (objective, predictions) in enumerate(zip(job.tasks, found, strict=True)):
        scores.append(watch.time("scoring", score, objective, predictions, groups))
        for baseline in watch.time("baselines", baselines, job, number):
            if baseline.name == "nearest neighbour" and "MMseqs2" in baseline.description:
                watch.add("MMseqs2", baseline.seconds)
                watch.add("baselines", -baseline.seconds)
            each[baseline.name].append(watch.time("scoring", score, objective, baseline.predictions, groups))
            how[baseline.name].append(f"{objective.settings.name}: {baseline.description}")
    beside = {name: Scores.joined(scored) for name, scored in each.items()}
    return Outcome(
        Scores.joined(scores), beside, {name: "; ".join(lines) for name, lines in how.items()}, watch.seconds
    )


def best_model(job: FineTuneJob, run: RunDirectory) -> torch.nn.Module:
    """The model of the run's best checkpoint, on the host."""
    built = job.build(None)
    best = best_valid(run.checkpoints)
    assert best is not None
    reader = TensorReader(best.path, "model", frozenset(entry.path for entry in best.manifest.files))
    model = built.model.to_empty(device="cpu")
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(reader.read(name) if name in reader.shapes else built.first[name]())
    return model


def baselines(job: FineTuneJob, number: int) -> list[Baseline]:
    """Every baseline of one objective, fitted on the training part, of the test part."""
    objective, labels, assays = job.tasks[number], job.assays.tasks[number].labels, job.assays
    parts = Parts(*(assays.records(part) for part in (TRAIN, VALIDATION, TEST)))
    store = assays.store
    sequences = [FASTA_LETTERS[store.residues(record)].tobytes().decode("ascii") for record in range(store.num_records)]
    found = [constant(objective, labels, parts)]
    if objective.settings.level == "sequence":
        found.append(nearest_neighbour(objective, labels, parts, sequences))
        found.append(linear("one-hot ridge", objective, labels, parts, sequence_features(sequences)))
        found.append(linear("frozen ridge", objective, labels, parts, _frozen(job, "mean")))
    else:
        found.append(linear("window", objective, labels, parts, windows(sequences)))
        found.append(linear("frozen ridge", objective, labels, parts, _frozen(job, "residue")))
    return found


def _frozen(job: FineTuneJob, pooling: Pooling) -> Features:
    """The vectors of the encoder before any fine-tuning."""
    recipe, store = job.recipe, job.assays.store
    cached = cached_features(
        job.source,
        Documents.whole(store.fingerprint, store.offsets),
        job.assays.shelves,
        recipe.data,
        [pooling],
        store.folder.parent,
        cache_gb=np.inf,
    ).features
    assert cached is not None
    first = store.offsets[:-1].astype(np.int64) if pooling == "residue" else None
    return Features(cached.rows[pooling], f"{pooling} vectors of the model before fine-tuning", first)
