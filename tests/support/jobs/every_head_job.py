"""A job with a head of every type and level, each labelled for an eighth of the proteins, through the one loop.

So most micro-batches lack labels of most objectives. Labels are numbers that follow from a protein's number.
"""

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any
from unittest import mock

import numpy as np
import torch
from torch import nn

from data.batches.collate import BinTargets, FilledBin, fill_bin
from data.batches.contents import Contents
from data.order.plan import Bin
from finetune.heads.settings import HeadSettings
from finetune.labels.columns import LabelColumns
from finetune.model import FineTuneModel
from finetune.tasks.task import Task
from pretrain.model.initialization import initial_weights
from pretrain.model.presets import PRESETS
from pretrain.recipe import Recipe
from support.assays.labelled_batches import EVERY_TYPE, PAIR
from support.jobs import length_job
from zymogen.trainer import job
from zymogen.trainer.engine.engine import Engine
from zymogen.trainer.job import ModelBundle
from zymogen.trainer.optimizer.kinds import ParameterGroup, parameter_groups

OBJECTIVES = (*EVERY_TYPE, PAIR)


class EveryContents(Contents):
    """Proteins as they are; labels of a residue are of the third slot, those of a pair of that and the fifth next."""

    def fill(self, bin_: Bin) -> FilledBin:
        found = [self._targets(bin_, number, objective) for number, objective in enumerate(OBJECTIVES)]
        return fill_bin(bin_, self.residues.tokens(bin_), *found)

    def _targets(self, bin_: Bin, number: int, objective: Task) -> BinTargets:
        labelled = bin_.samples % len(OBJECTIVES) == number
        own = bin_.samples[labelled] // len(OBJECTIVES)
        slots = (np.cumsum(bin_.lengths) - bin_.lengths)[labelled] + 2 * (objective.settings.level != "sequence")
        none = np.zeros_like(own)
        columns = {
            "outputs": own % len(objective.outputs),
            "censoring": ((own % 3 - 1) * (not objective.classes)).astype(np.int8),
            "partner": none + 5 * (objective.settings.level == "pair"),
        }
        labels = (own % (len(objective.classes) or 5)).astype(np.float32)
        return slots.astype(np.int32), labels, *(columns.get(name, none) for name in LabelColumns._fields)


class EveryHeadJob(length_job.LengthJob):
    """All of them."""

    objectives = tuple(job.LossTerm(objective.settings.name, 1.0) for objective in OBJECTIVES)

    def __init__(self, recipe: Recipe, engine: Engine) -> None:
        super().__init__(recipe, engine)
        self.contents = EveryContents(self.corpora.reader, recipe.data)

    def build(self, described: Mapping[str, Any] | None) -> ModelBundle:
        self.shape = PRESETS["esm2_60k"]
        heads = HeadSettings(pooling="attention")
        with torch.device("meta"):
            model = FineTuneModel(self.shape, OBJECTIVES, heads)
        return ModelBundle(model, asdict(self.shape), initial_weights(model, self.recipe.run.seed), self.shape.dim)

    def parameter_groups(self, model: nn.Module) -> list[ParameterGroup]:
        return parameter_groups(model, self.recipe.optimizer)

    @torch.no_grad()
    def evaluate(self, model: nn.Module) -> length_job.LengthScores:
        """Predictions of each target are asked for; nothing is scored."""
        for bin_ in length_job.validation_set(self.corpora, self.recipe.data, 8).bins(self.recipe.data):
            batch = self.contents.batch([bin_], [0])
            numbers = model(batch, each=True)
            assert [len(one) for one in numbers] == batch.counts.tolist()
            assert all(bool(one.isfinite().all()) for one in numbers)
        return length_job.LengthScores(0.0, 0.0)

    def publish(self, run: Any) -> None:
        """Nothing."""


def main(arguments: list[str]) -> int:
    with mock.patch.object(length_job, "LengthJob", EveryHeadJob):
        return length_job.main(arguments)
