"""A job of one's own, whole: how long a protein is, read off its first slot.

    accelerate launch --config_file accelerate_configs/ddp.yaml tests/support/jobs/length_job.py recipe.toml

Two objectives: the logarithm of its length over 60 tokens, and whether that is above 0. Each is labelled for half of
the proteins.
"""

import shutil
import sys
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from data.batches.batch import Batch
from data.batches.collate import FilledBin, fill_bin
from data.batches.contents import Contents
from data.batches.loader import Loader, Step
from data.order.plan import Bin, Cursor
from data.order.settings import forward_bins
from pretrain.corpora import open_on_every_rank
from pretrain.evaluate.validation import validation_set
from pretrain.model.compute import set_up_encoder
from pretrain.model.encoder import Encoder
from pretrain.model.initialization import initial_weights
from pretrain.model.memory import training_flops
from pretrain.model.presets import PRESETS, EsmShape
from pretrain.recipe import Recipe
from zymogen.processes.fresh_process import run_command
from zymogen.processes.signals import handle_signals
from zymogen.settings.toml_file import read
from zymogen.trainer.attempt import train
from zymogen.trainer.checkpoint.load import newest_valid
from zymogen.trainer.engine.engine import Engine
from zymogen.trainer.engine.launch import launch
from zymogen.trainer.job import Job, LossTerm, ModelBundle
from zymogen.trainer.optimizer.kinds import ParameterGroup
from zymogen.trainer.run.directory import RunDirectory
from zymogen.trainer.step import StepResult

LONG = 60
"""Tokens from which on a protein is long."""


class LengthContents(Contents):
    """Proteins as they are; a target is the first slot of a document."""

    def fill(self, bin_: Bin) -> FilledBin:
        firsts = (np.cumsum(bin_.lengths) - bin_.lengths).astype(np.int32)
        even = bin_.samples % 2 == 0  # a label that is missing is no target: half of the proteins have either one
        length = firsts[even], np.log(bin_.lengths[even] / LONG).astype(np.float32)
        is_long = firsts[~even], (bin_.lengths[~even] >= LONG).astype(np.float32)
        return fill_bin(bin_, self.residues.tokens(bin_), length, is_long)


class LengthModel(nn.Module):
    """An encoder, and a head with one output for each objective."""

    def __init__(self, shape: EsmShape) -> None:
        super().__init__()
        self.encoder = Encoder(shape)
        self.head = nn.Linear(shape.dim, 2)

    def forward(self, batch: Batch) -> Tensor:
        length, is_long = batch.targets
        vectors = self.encoder(batch, torch.cat([length.slots, is_long.slots]))
        of_length, of_long = self.head(vectors).float().split([len(length.slots), len(is_long.slots)])
        squared = (of_length[:, 0] - length.labels).square().sum()
        entropy = F.binary_cross_entropy_with_logits(of_long[:, 1], is_long.labels, reduction="sum")
        return torch.stack([squared, entropy])  # sums: the step divides them, once


class LengthScores(NamedTuple):
    """Mean losses on the proteins that are held out."""

    squared_error: float
    cross_entropy: float

    def numbers(self) -> dict[str, dict[str, float]]:
        return {"length": self._asdict()}

    def line(self) -> str:
        return f"held out: squared error {self.squared_error:.4f}, cross-entropy {self.cross_entropy:.4f}"

    @property
    def rank_metric(self) -> float:
        return self.squared_error


class LengthJob(Job[LengthScores]):
    """What is trained; the loop does the rest."""

    objectives = (LossTerm("length", 1.0), LossTerm("is_long", 0.5))

    def __init__(self, recipe: Recipe, engine: Engine) -> None:
        self.recipe, self.engine = recipe, engine
        self.corpora = open_on_every_rank(recipe.data, engine)
        self.contents = LengthContents(self.corpora.reader, recipe.data)

    def fingerprints(self) -> dict[str, str]:
        return {"corpus": self.corpora.fingerprint, "split": self.corpora.split_fingerprint}

    def build(self, described: Mapping[str, Any] | None) -> ModelBundle:
        self.shape = EsmShape(**described) if described else PRESETS[str(self.recipe.model.preset)]
        with torch.device("meta"):
            model = LengthModel(self.shape)
        return ModelBundle(model, asdict(self.shape), initial_weights(model, self.recipe.run.seed), self.shape.dim)

    def set_up(self, model: nn.Module) -> list[str]:
        data, parallel = self.recipe.data, self.recipe.parallel
        slots = data.bin_tokens * forward_bins(data)
        return set_up_encoder(model.encoder, self.engine, self.recipe.compute, parallel.exchange, slots)

    def parameter_groups(self, model: nn.Module) -> list[ParameterGroup]:
        encoder, head = list(model.encoder.parameters()), list(model.head.parameters())
        return [
            {"name": "encoder", "params": encoder, "weight_decay": 0.01, "lr_scale": 0.5},
            {"name": "head", "params": head, "weight_decay": 0.0},
        ]

    def loader(self, cursor: Cursor, first_step: int) -> Loader:
        engine, plan = self.engine, self.corpora.plan(self.recipe.run.seed)
        return Loader(self.contents, plan, cursor, first_step, engine.data_rank, engine.data_world_size)

    def flops(self, step: Step, result: StepResult) -> float:
        return training_flops(self.shape, step.num_tokens, step.squared_lengths, targets=0)

    @torch.no_grad()
    def evaluate(self, model: nn.Module) -> LengthScores:
        sums, counts = torch.zeros(2, len(self.objectives), device=self.engine.device)
        was_training = model.training
        model.eval()
        scored = validation_set(self.corpora, self.recipe.data, self.recipe.run.validation_sequences)
        for bin_ in scored.bins(self.recipe.data):
            batch = self.engine.share(self.contents.batch([bin_], [0]))
            with self.engine.autocast():
                sums += model(batch.to(self.engine.device))
            counts += batch.counts.to(self.engine.device)
        model.train(was_training)
        return LengthScores(*(self.engine.sum_over_ranks(sums) / self.engine.sum_over_ranks(counts)).tolist())

    def publish(self, run: RunDirectory) -> None:
        newest = newest_valid(run.checkpoints, writer=False)
        assert newest is not None
        shutil.copytree(newest.path / "model", run.export, dirs_exist_ok=True)


def main(arguments: list[str]) -> int:
    """Train as the recipe says; the exit status."""
    recipe = read(Recipe, Path(arguments[0]), arguments[1:])
    with handle_signals(), launch(recipe) as engine:
        summary = train(recipe, LengthJob, engine)
        if engine.is_main:
            print(summary.scores.line())
    return 0


if __name__ == "__main__":
    run_command(lambda: main(sys.argv[1:]))
