"""Evaluation: predictions of some records, by all ranks or by one process alone, and their scores.

In: a prepared model, assays, records. Out: scores, the same on every rank; predictions. Kept: nothing. Which records
are scored does not depend on how they are spread, and every label is scored once.
"""

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from data.batches.batch import Batch
from data.batches.packed import in_turn
from data.order.plan import Bin
from finetune.assays import Assays
from finetune.heads.predicted import predicted
from finetune.labels.columns import LabelColumns
from finetune.losses.loss import TaskLoss
from finetune.losses.settings import LossSettings
from finetune.metrics.predictions import Predictions, Rows
from finetune.metrics.scores import Scores
from finetune.metrics.validation import FineTuneScores, ranked
from finetune.tasks.objective import Objective
from pretrain.engine.engine import Engine


class _Part(NamedTuple):
    """What one rank predicted of one objective; each array has a row for each label."""

    records: NDArray[np.int64]
    outputs: NDArray[np.int64]
    truth: NDArray[np.float64]
    censoring: NDArray[np.int8]
    places: NDArray[np.int64]
    partners: NDArray[np.int64]
    prediction: NDArray[np.float64]


_Columns = Sequence[Sequence[NDArray[np.generic]]]
"""The columns of `_Part`, each as the arrays of several parts; empty without any."""


@torch.no_grad()
def evaluate(
    model: nn.Module,
    assays: Assays,
    objectives: Sequence[Objective],
    records: NDArray[np.int64],
    part: str,
    settings: LossSettings,
    engine: Engine,
) -> FineTuneScores:
    """Rank some records of each task; collective. Rank 0 computes the scores for all ranks.

    Args:
        model: a `FineTuneModel` as the engine prepared it; its mode stays as it was.
        assays: hold the records.
        objectives: of the model.
        records: numbers of records, rising.
        part: name of what is scored, for readers.
        settings: of the losses.
        engine: to whose ranks the bins are dealt.
    """
    predictions, losses = predict_together(model, assays, objectives, records, settings, engine)

    def scored() -> FineTuneScores:
        each = [ranked(o, p) for o, p in zip(objectives, predictions, strict=True)]
        return FineTuneScores(Scores.joined(each), losses, part)

    return engine.on_main(scored)


@torch.no_grad()
def predict_together(
    model: nn.Module,
    assays: Assays,
    objectives: Sequence[Objective],
    records: NDArray[np.int64],
    settings: LossSettings,
    engine: Engine,
) -> tuple[list[Predictions], dict[str, float]]:
    """Predictions of every label of some records, and the mean loss of each objective with a label; collective."""
    turns = ((bin_, batch) for bin_, batch, _ in in_turn(assays.bins(records), assays.contents, engine))
    parts, sums, counts = _predicted(model, objectives, turns, settings, engine.device, engine.autocast)
    of_ranks = zip(*engine.gather(parts), strict=True)
    total, count = engine.sum_over_ranks(sums).tolist(), engine.sum_over_ranks(counts).tolist()
    names = [objective.settings.name for objective in objectives]
    means = {name: loss / labels for name, loss, labels in zip(names, total, count, strict=True) if labels}
    return [_joined(assays, of, each) for of, each in zip(objectives, of_ranks, strict=True)], means


@torch.no_grad()
def predict(
    model: nn.Module,
    assays: Assays,
    objectives: Sequence[Objective],
    records: NDArray[np.int64],
    settings: LossSettings,
    device: torch.device,
) -> list[Predictions]:
    """Predictions of every label of some records, by this process alone and in float32."""
    batches = ((bin_, assays.contents.batch([bin_], [0])) for bin_ in assays.bins(records))
    parts, _, _ = _predicted(model, objectives, batches, settings, device, nullcontext)
    return [_joined(assays, of, [own]) for of, own in zip(objectives, parts, strict=True)]


def _predicted(
    model: nn.Module,
    objectives: Sequence[Objective],
    batches: Iterable[tuple[Bin, Batch]],
    settings: LossSettings,
    device: torch.device,
    autocast: Callable[[], AbstractContextManager[None]],
) -> tuple[list[_Columns], Tensor, Tensor]:
    """For each objective, the columns of `_Part` as parts of them; the sum of its losses; and its labels."""
    was_training = model.training
    model.train(False)
    found: list[list[_Part]] = [[] for _ in objectives]
    losses = [TaskLoss(objective, settings) for objective in objectives]
    sums, counts = torch.zeros(2, len(objectives), device=device, dtype=torch.float64)
    for bin_, batch in batches:
        on_device = batch.to(device)
        with autocast():
            numbers = model(on_device, each=True)
        counts += batch.counts.to(device)
        for i, (of, each, number) in enumerate(zip(found, batch.targets, numbers, strict=True)):
            columns = LabelColumns(*each.columns)
            there = on_device.targets[i]
            sums[i] += losses[i](number, there.labels, LabelColumns(*there.columns)).double()
            place, partner = columns.place.numpy(), columns.partner.numpy()
            of.append(
                _Part(
                    _records(bin_, batch, each.slots.numpy()),
                    columns.outputs.numpy(),
                    each.labels.numpy().astype(np.float64),
                    columns.censoring.numpy(),
                    place,
                    partner,
                    predicted(objectives[i], number, columns.outputs),
                )
            )
    model.train(was_training)
    return [[*zip(*parts, strict=True)] for parts in found], sums, counts


def _records(bin_: Bin, batch: Batch, slots: NDArray[np.int64]) -> NDArray[np.int64]:
    """(targets,) the record of each slot of a batch of one bin."""
    ends = np.array([end for _, end in batch.spans], np.int64)
    return bin_.samples[np.searchsorted(ends, slots, side="right")] if len(ends) else np.zeros(0, np.int64)


def _joined(assays: Assays, objective: Objective, of_ranks: Sequence[_Columns]) -> Predictions:
    """The predictions of all ranks, by record, place and output."""
    kept = [fields for fields in of_ranks if fields]
    wide = objective.settings.type in ("multiclass", "ordinal")
    if not kept:
        empty, none = np.zeros(0, np.int64), np.zeros((0, len(objective.classes)) if wide else 0)
        return Predictions(Rows(empty, empty, np.zeros(0), None, None), none)
    columns = [np.concatenate([array for fields in kept for array in fields[i]]) for i in range(len(_Part._fields))]
    order = np.lexsort([columns[_Part._fields.index(name)] for name in ("outputs", "partners", "places", "records")])
    found = _Part._make(column[order] for column in columns)
    positions = None
    if objective.settings.level != "sequence":
        first = found.places - assays.labels.first_residues(found.records)
        positions = first if objective.settings.level == "residue" else np.stack([first, first + found.partners], 1)
    censoring = found.censoring if found.censoring.any() else None
    return Predictions(Rows(found.records, found.outputs, found.truth, censoring, positions), found.prediction)
