"""An evaluation predicts every label of its records once, as the model does of each protein alone."""

from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from data.batches.batch import Batch
from finetune.assays import Assays, open_assays, prepare
from finetune.heads.activation import activate
from finetune.labels.columns import LabelColumns
from finetune.metrics.scores import TaskScores
from finetune.metrics.scoring import score
from finetune.metrics.validation import FineTuneScores
from finetune.model import FineTuneModel
from finetune.recipe import Recipe
from finetune.scoring import evaluate, predict, predict_together
from finetune.splits.parts import TEST
from pretrain.model.presets import PRESETS
from support.assays.labelled_batches import wide
from support.assays.small_run import write
from zymogen.settings.toml_file import read


class Rank:
    """One of several processes that do not wait for each other; `gather` keeps what each of them gives."""

    device = torch.device("cpu")

    def __init__(self, rank: int, size: int, given: list[Any]) -> None:
        self.data_rank, self.data_world_size, self.given = rank, size, given
        self.passes = 0

    def raise_if_interrupted(self) -> None:
        """Nothing."""

    def share(self, batch: Batch) -> Batch:
        self.passes += 1
        return batch

    def autocast(self) -> nullcontext[None]:
        return nullcontext()

    def gather(self, value: Any) -> list[Any]:
        self.given.append(value)
        return self.given

    def on_main(self, work: Any) -> Any:
        return work()

    def sum_over_ranks(self, values: Tensor) -> Tensor:
        return values


@pytest.fixture(scope="module")
def recipe(tmp_path_factory: pytest.TempPathFactory) -> Recipe:
    return read(Recipe, write(tmp_path_factory.mktemp("evaluate")))


@pytest.fixture(scope="module")
def assays(recipe: Recipe) -> Assays:
    return open_assays(recipe, prepare(recipe))


@pytest.fixture(scope="module")
def model(recipe: Recipe, assays: Assays) -> FineTuneModel:
    made = FineTuneModel(PRESETS["esm2_60k"], assays.objectives, recipe.heads)
    wide(made)
    return made


def found(model: FineTuneModel, assays: Assays, recipe: Recipe, ranks: int = 1) -> tuple[list[Any], dict[str, float]]:
    """What the last of some ranks has; all take as many forward passes."""
    records, given = assays.records(TEST), []
    spread = [Rank(rank, ranks, given) for rank in range(ranks)]
    each = [predict_together(model, assays, assays.objectives, records, rank) for rank in spread]
    assert len({rank.passes for rank in spread}) == 1
    return each[-1]


def test_every_label_is_predicted_once_as_of_its_protein_alone(
    model: FineTuneModel, assays: Assays, recipe: Recipe
) -> None:
    model.train(True)
    predictions, losses = found(model, assays, recipe)
    assert model.training
    model.train(False)
    sums, counts = torch.zeros(5), torch.zeros(5)
    alone: list[dict[tuple[int, ...], tuple[float, list[float]]]] = [{} for _ in predictions]
    with torch.no_grad():
        for record in assays.records(TEST):
            batch = assays.contents.batch(assays.bins(np.array([record])), [0])
            sums, counts = sums + model(batch), counts + batch.counts
            for i, (number, targets) in enumerate(zip(model(batch, each=True), batch.targets, strict=True)):
                columns = LabelColumns(*targets.columns)
                values = activate(assays.objectives[i], number, columns.outputs)
                where = targets.slots - 1 if i == 4 else columns.outputs
                for place, label, value in zip(where.tolist(), targets.labels.tolist(), values, strict=True):
                    assert (int(record), place) not in alone[i]
                    alone[i][int(record), place] = label, np.atleast_1d(value).tolist()
    for i, own in enumerate(predictions):
        rows = own.rows
        places = rows.positions if i == 4 else rows.outputs
        keys = [*zip(rows.records.tolist(), places.tolist(), strict=True)]
        assert keys == sorted(alone[i])
        assert rows.truth.tolist() == [alone[i][key][0] for key in keys]
        values = np.array([alone[i][key][1] for key in keys])
        of_all = np.asarray(own.prediction).reshape(len(keys), -1)
        np.testing.assert_allclose(of_all, values, atol=2e-5 * np.abs(values).max())
    expected = dict(zip([o.settings.name for o in assays.objectives], (sums / counts).tolist(), strict=True))
    assert losses == pytest.approx(expected, rel=1e-5)
    by_one = predict(model, assays, assays.objectives, assays.records(TEST), torch.device("cpu"))
    for own, again in zip(predictions, by_one, strict=True):
        assert np.array_equal(own.prediction, again.prediction)
        assert np.array_equal(own.rows.truth, again.rows.truth)


def test_an_objective_without_a_label_has_no_loss_and_the_others_still_choose_a_checkpoint(
    model: FineTuneModel, assays: Assays, recipe: Recipe
) -> None:
    is_free = np.diff(assays.tasks[4].labels.pointers) == 0
    records = assays.records(TEST)[is_free[assays.records(TEST)]]
    _, losses = predict_together(model, assays, assays.objectives, records, Rank(0, 1, []))
    assert [*losses] == ["affinity", "binds", "place", "grade"]
    metric = FineTuneScores(TaskScores(()), losses, "test").rank_metric
    assert metric == pytest.approx(sum(losses.values()))
    assert np.isfinite(metric)


def test_a_validation_takes_the_ranking_metric_alone(model: FineTuneModel, assays: Assays, recipe: Recipe) -> None:
    given = model, assays, assays.objectives, assays.records(TEST)
    found = evaluate(*given, "test", Rank(0, 1, []))  # type: ignore[arg-type]
    predictions, losses = predict_together(*given, Rank(0, 1, []))  # type: ignore[arg-type]
    full = TaskScores.joined(score(o, p, intervals=False) for o, p in zip(assays.objectives, predictions, strict=True))
    assert [task.value for task in found.tasks.tasks] == [task.value for task in full.tasks]
    assert not any(task.values for task in found.tasks.tasks)
    assert found.losses == losses


@pytest.mark.parametrize(("bin_tokens", "ranks"), [(64, 1), (1000, 1), (128, 2), (1000, 3)])
def test_neither_bins_nor_ranks_change_what_is_predicted(
    model: FineTuneModel, assays: Assays, recipe: Recipe, bin_tokens: int, ranks: int
) -> None:
    """These proteins fill at most two bins of 1,000 tokens, so that one of three ranks has none."""
    one, _ = found(model, assays, recipe)
    settings = replace(assays.settings, bin_tokens=bin_tokens)
    other, _ = found(model, replace(assays, settings=settings), recipe, ranks)
    for a, b in zip(one, other, strict=True):
        assert np.array_equal(a.rows.records, b.rows.records)
        assert np.array_equal(a.rows.outputs, b.rows.outputs)
        assert np.array_equal(a.rows.truth, b.rows.truth)
        assert (a.rows.positions is None) == (b.rows.positions is None)
        assert a.rows.positions is None or np.array_equal(a.rows.positions, b.rows.positions)
        np.testing.assert_allclose(a.prediction, b.prediction, atol=2e-5 * np.abs(a.prediction).max())
