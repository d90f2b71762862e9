"""Context parallelism in the model that is fine-tuned: documents whose slots lie on several ranks.

Real processes and real collectives. In float64 losses and gradients, summed over ranks, and predictions, one rank's
after another's, are those of one process to 1e-12.
"""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from data.batches.batch import Batch
from finetune.heads import pooling
from finetune.heads.settings import HeadSettings, PoolingRequest
from finetune.labels.columns import LabelColumns
from finetune.model import FineTuneModel
from pretrain.model.context import ContextShard
from support.assays.labelled_batches import EVERY_TYPE, gradient, labelled, wide, without_labels
from support.context_ranks import Case, Ranks
from support.inputs.flat_batches import perturb

Found = tuple[NDArray[np.float64], NDArray[np.float64], list[NDArray[np.float64]]]
"""Loss sums, all gradients in one row, and the numbers of each objective's targets."""


@dataclass(frozen=True)
class Heads(Case):
    pooling: PoolingRequest = "mean"
    batch: str = "labelled"
    local: bool = False
    """Whether each rank pools its own slots alone, which is wrong."""


def with_linkers(batch: Batch) -> Batch:
    """Two chains in each document that lies in the shares of several ranks; linkers lie in another than its labels."""
    changed = []
    for of in batch.targets:
        skip_start = (of.slots == 250) * 53 + (of.slots == 402) * 60 + (of.slots == 0) * 155
        columns = LabelColumns(*of.columns)._replace(skip_start=skip_start, skip_end=skip_start + 6 * (skip_start > 0))
        changed.append(replace(of, columns=columns))
    return replace(batch, targets=tuple(changed))


def prepared(name: str) -> Batch:
    batch = with_linkers(labelled(one_bin=True))
    return {"labelled": batch, "no labels": without_labels(batch), "idle": batch.idle()}[name]


def computed(case: Heads, context: ContextShard | None) -> Found:
    model = FineTuneModel(case.model().shape, EVERY_TYPE, HeadSettings(pooling=case.pooling), case.backend)
    perturb(model.encoder)
    wide(model.heads)
    if model.pooling is not None:
        wide(model.pooling)
    model.double().encoder.context = context
    if case.local:
        pooling._reduced = lambda own, group: own
    batch = prepared(case.batch)
    own = batch.share(context.rank, context.size) if context else batch
    sums = model(own)
    flat = gradient(model, sums.sum())
    with torch.no_grad():
        numbers = model(own, each=True)
    return sums.detach().numpy(), flat.numpy(), [one.numpy() for one in numbers]


def together(context_ranks: Ranks, case: Heads) -> Found:
    each: list[Any] = context_ranks.run(case, computed)
    numbers = [np.concatenate([found[2][number] for found in each]) for number in range(len(EVERY_TYPE))]
    return sum(found[0] for found in each), sum(found[1] for found in each), numbers


def error(found: Found, truth: Found) -> float:
    pairs = [(found[0], truth[0]), (found[1], truth[1]), *zip(found[2], truth[2], strict=True)]
    return max(float(np.abs(ours - theirs).max() / np.abs(theirs).max()) for ours, theirs in pairs)


@pytest.mark.launch
@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize("pooling", ["mean", "attention", "begin"])
def test_ranks_together_compute_what_one_computes(context_ranks: Ranks, pooling: PoolingRequest, size: int) -> None:
    for exchange in ("ulysses", "all_gather"):
        case = Heads(pooling=pooling, size=size, exchange=exchange)  # type: ignore[arg-type]
        found = error(together(context_ranks, case), computed(case, None))
        print(pooling, size, exchange, found)
        assert found < 1e-12


@pytest.mark.launch
@pytest.mark.parametrize("pooling", ["mean", "attention"])
def test_control_pooling_one_s_own_slots_is_far_off(tmp_path_factory: Any, pooling: PoolingRequest) -> None:
    running = Ranks(tmp_path_factory.mktemp("local"))  # whose processes are spoiled
    try:
        case = Heads(pooling=pooling, local=True)
        assert error(together(running, case), computed(replace(case, local=False), None)) > 1e-2
    finally:
        running.end()


@pytest.mark.launch
@pytest.mark.parametrize("pooling", ["mean", "attention", "begin"])
@pytest.mark.parametrize("batch", ["no labels", "idle"])
def test_every_parameter_has_a_gradient_on_every_rank(
    context_ranks: Ranks, pooling: PoolingRequest, batch: str
) -> None:
    for sums, flat, _ in context_ranks.run(Heads(pooling=pooling, batch=batch), computed):
        assert not sums.any()
        assert not flat.any()
