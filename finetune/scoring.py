"""Evaluation: predictions of some records, by all ranks or by one process alone, and their scores.

In: a prepared model, assays, records. Out: scores, the same on every rank; predictions. Kept: nothing. Which records
are scored does not depend on how they are spread, and every label is scored once.
"""

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from data.batches.batch import Batch
from data.batches.packed import iterate_bins
from data.order.plan import Bin
from finetune.assays import Assays
from finetune.heads.activation import activate
from finetune.labels.columns import LabelColumns
from finetune.losses.loss import TaskLoss
from finetune.metrics.predictions import LabelPredictions, LabelRows, concatenate
from finetune.metrics.scores import TaskScores
from finetune.metrics.scoring import score
from finetune.metrics.validation import FineTuneScores
from finetune.tasks.task import Task
from zymogen.trainer.engine.engine import Engine


@torch.no_grad()
def evaluate(
    model: nn.Module,
    assays: Assays,
    objectives: Sequence[Task],
    records: NDArray[np.int64],
    part: str,
    engine: Engine,
) -> FineTuneScores:
    """Rank some records of each task; collective. Rank 0 computes the scores for all ranks.

    Args:
        model: a `FineTuneModel` as the engine prepared it; its mode stays as it was.
        assays: hold the records.
        objectives: of the model.
        records: numbers of records, rising.
        part: name of what is scored, for readers.
        engine: to whose ranks the bins are dealt.
    """
    predictions, losses = predict_together(model, assays, objectives, records, engine)

    def ranked() -> FineTuneScores:
        each = (score(of, found, ranks_only=True) for of, found in zip(objectives, predictions, strict=True))
        return FineTuneScores(TaskScores.joined(each), losses, part)

    return engine.on_main(ranked)


@torch.no_grad()
def predict_together(
    model: nn.Module,
    assays: Assays,
    objectives: Sequence[Task],
    records: NDArray[np.int64],
    engine: Engine,
) -> tuple[list[LabelPredictions], dict[str, float]]:
    """Predictions of every label of some records, and the mean loss of each objective with a label; collective."""
    turns = ((bin_, batch) for bin_, batch, _ in iterate_bins(assays.bins(records), assays.contents, engine))
    own, sums, counts = _predicted(model, assays, objectives, turns, engine.device, engine.autocast)
    of_ranks = zip(*engine.gather(own), strict=True)
    total, count = engine.sum_over_ranks(sums).tolist(), engine.sum_over_ranks(counts).tolist()
    names = [objective.settings.name for objective in objectives]
    means = {name: loss / labels for name, loss, labels in zip(names, total, count, strict=True) if labels}
    return [concatenate(parts)[0] for parts in of_ranks], means


@torch.no_grad()
def predict(
    model: nn.Module,
    assays: Assays,
    objectives: Sequence[Task],
    records: NDArray[np.int64],
    device: torch.device,
) -> list[LabelPredictions]:
    """Predictions of every label of some records, by this process alone and in float32."""
    batches = ((bin_, assays.contents.batch([bin_], [0])) for bin_ in assays.bins(records))
    return _predicted(model, assays, objectives, batches, device, nullcontext)[0]


def _predicted(
    model: nn.Module,
    assays: Assays,
    objectives: Sequence[Task],
    batches: Iterable[tuple[Bin, Batch]],
    device: torch.device,
    autocast: Callable[[], AbstractContextManager[None]],
) -> tuple[list[LabelPredictions], Tensor, Tensor]:
    """For each objective its predictions; the sum of its losses; and its labels."""
    was_training = model.training
    model.train(False)
    found = [[_nothing(objective)] for objective in objectives]
    losses = [TaskLoss(objective) for objective in objectives]
    sums, counts = torch.zeros(2, len(objectives), device=device, dtype=torch.float64)
    for bin_, batch in batches:
        on_device = batch.to(device)
        with autocast():
            numbers = model(on_device, each=True)
        counts += batch.counts.to(device)
        for i, (objective, each, number) in enumerate(zip(objectives, batch.targets, numbers, strict=True)):
            columns = LabelColumns(*each.columns)
            there = on_device.targets[i]
            sums[i] += losses[i](number, there.labels, LabelColumns(*there.columns)).double()
            records = _records(bin_, batch, each.slots.numpy())
            rows = LabelRows(
                records,
                columns.outputs.numpy(),
                each.labels.numpy().astype(np.float64),
                columns.censoring.numpy(),
                _positions(objective, columns, assays.labels.first_residues(records)),
            )
            found[i].append(LabelPredictions(rows, activate(objective, number, columns.outputs)))
    model.train(was_training)
    return [concatenate(parts)[0] for parts in found], sums, counts


def _nothing(objective: Task) -> LabelPredictions:
    """The predictions of no label."""
    none, is_wide = np.zeros(0, np.int64), objective.settings.kind.predicts_each_class
    return LabelPredictions(LabelRows(none, none, np.zeros(0)), np.zeros((0, len(objective.classes)) if is_wide else 0))


def _records(bin_: Bin, batch: Batch, slots: NDArray[np.int64]) -> NDArray[np.int64]:
    """(targets,) the record of each slot of a batch of one bin."""
    ends = np.array([end for _, end in batch.spans], np.int64)
    return bin_.samples[np.searchsorted(ends, slots, side="right")] if len(ends) else np.zeros(0, np.int64)


def _positions(objective: Task, columns: LabelColumns, firsts: NDArray[np.int64]) -> NDArray[np.int64] | None:
    """(targets,) or (targets, 2) residues of the record, of which the first residue's place is given."""
    if objective.settings.level == "sequence":
        return None
    first: NDArray[np.int64] = columns.place.numpy() - firsts
    return first if objective.settings.level == "residue" else np.stack([first, first + columns.partner.numpy()], 1)
