"""Scores of tasks: which metric, which are undefined and why, what a run, a bundle and a reader get of them."""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from scipy import stats
from sklearn.metrics import average_precision_score, cohen_kappa_score, roc_auc_score

from finetune.heads.activation import activate
from finetune.labels.labels import ABOVE, BELOW, EXACT
from finetune.metrics.predictions import LabelPredictions, LabelRows
from finetune.metrics.scores import TaskScore, TaskScores
from finetune.metrics.scoring import score
from finetune.tasks.settings import TaskSettings
from finetune.tasks.task import Task

Floats = NDArray[np.float64]


def objective(kind: str, *outputs: str, classes: tuple[str, ...] = (), trained: object = None, **more: Any) -> Task:
    counts = np.full((len(outputs), len(classes)), 5) if trained is None else np.asarray(trained)
    settings = TaskSettings(name="assay", type=kind, **more)
    ones = np.ones(len(outputs))
    return Task(settings, outputs, classes, 0 * ones, ones, counts.astype(np.int64))


def table(truth: object, prediction: object, outputs: object = 0, censoring: object = None) -> LabelPredictions:
    values = np.asarray(truth, np.float64)
    of = np.broadcast_to(np.asarray(outputs, np.int64), len(values))
    bounds = None if censoring is None else np.asarray(censoring, np.int8)
    return LabelPredictions(LabelRows(np.arange(len(values)), of, values, bounds), np.asarray(prediction, np.float64))


def noisy(size: int, seed: int = 0) -> tuple[Floats, Floats]:
    rng = np.random.Generator(np.random.Philox(seed))
    truth = rng.normal(size=size)
    return truth, truth + rng.normal(size=size)


YES = np.array([0.0, 0, 0, 0, 0, 0, 0, 1, 1, 1])
SURE = np.array([0.1, 0.2, 0.3, 0.8, 0.1, 0.2, 0.3, 0.4, 0.9, 0.7])


def test_regression() -> None:
    truth, prediction = noisy(60)
    settings = TaskSettings(name="assay", type="regression", transform="log10")
    (task,) = score(replace(objective("regression", "a"), settings=settings), table(truth, prediction)).tasks
    assert task.metric == "spearman"
    assert task.value == pytest.approx(stats.spearmanr(truth, prediction).statistic, abs=1e-12)
    assert task.value == task.skill
    assert task.low is not None
    assert task.high is not None
    assert task.low < task.value < task.high
    assert task.values["rmse"] == pytest.approx(math.sqrt(np.mean((truth - prediction) ** 2)))
    assert task.values["rmse_unit"] == pytest.approx(math.sqrt(np.mean((10**truth - 10**prediction) ** 2)))
    assert (task.labels, task.groups) == (60, 60)


def test_binary() -> None:
    (task,) = score(objective("binary", "a"), table(YES, SURE)).tasks
    assert task.value == pytest.approx(roc_auc_score(YES, SURE))
    assert task.skill == pytest.approx(2 * roc_auc_score(YES, SURE) - 1)
    assert task.values["ap"] == pytest.approx(average_precision_score(YES, SURE))
    assert task.values["positive_ratio"] == pytest.approx(0.3)
    # The confusion of 0.5: two of three found, one of seven wrongly.
    assert task.values["mcc"] == pytest.approx((2 * 6 - 1 * 1) / math.sqrt(3 * 3 * 7 * 7))
    assert task.values["f1"] == pytest.approx(2 / 3)
    assert task.class_counts == {"no": 7, "yes": 3}
    assert (task.values["ef1_items"], task.values["ef1_most"]) == (1, pytest.approx(10 / 3))


def test_each_task_is_scored_by_itself() -> None:
    """The prevalence of each task knows nothing: pooled over tasks it would score 0.82."""
    truth = np.concatenate([np.arange(20) < 18, np.arange(20) < 2]).astype(np.float64)
    prediction, outputs = np.repeat((0.9, 0.1), 20), np.repeat((0, 1), 20)
    scores = score(objective("binary", "a", "b"), table(truth, prediction, outputs), intervals=False)
    assert [task.value for task in scores.tasks] == [0.5, 0.5]
    assert scores.stopping_metric == 0
    assert roc_auc_score(truth, prediction) == pytest.approx(0.9)


def test_multiclass_leaves_untrained_classes_out() -> None:
    rng = np.random.Generator(np.random.Philox(5))
    truth = np.repeat((0, 1, 2, 3), (12, 9, 6, 3))
    probabilities = rng.dirichlet(np.ones(5), 30)
    names = ("in", "out", "wall", "rare", "absent")
    of = objective("multiclass", "where", classes=names, trained=[[9, 9, 9, 0, 4]])
    (task,) = score(of, table(truth, probabilities)).tasks
    kept = truth < 3
    each = [roc_auc_score(truth[kept] == label, probabilities[kept, label]) for label in range(3)]
    assert task.metric == "macro_auroc"
    assert task.value == pytest.approx(np.mean(each), abs=1e-12)
    assert task.labels == 27
    assert task.untrained == {"rare": 3}
    assert task.class_counts == {"in": 12, "out": 9, "wall": 6, "rare": 3}
    assert task.values["majority"] == pytest.approx(12 / 27)
    called = np.where(np.array([1, 1, 1, 0, 1]), probabilities[kept], 0).argmax(1)
    assert task.values["accuracy"] == pytest.approx((called == truth[kept]).mean())


def test_ordinal() -> None:
    rng = np.random.Generator(np.random.Philox(6))
    truth = rng.integers(0, 4, 50)
    probabilities = rng.dirichlet(np.ones(4), 50) + 2 * np.eye(4)[truth] * rng.random((50, 1))
    probabilities /= probabilities.sum(1, keepdims=True)
    (task,) = score(objective("ordinal", "grade", classes=("0", "1", "2", "3")), table(truth, probabilities)).tasks
    assert task.value == pytest.approx(stats.kendalltau(truth, probabilities @ np.arange(4)).statistic, abs=1e-12)
    kappa = cohen_kappa_score(truth, probabilities.argmax(1), weights="quadratic")
    assert task.values["quadratic_kappa"] == pytest.approx(kappa, abs=1e-12)


def test_multilabel_is_the_mean_of_defined_columns() -> None:
    truth = np.concatenate([YES, YES, np.zeros(10)])
    prediction = np.concatenate([SURE, 1 - SURE, SURE])
    outputs = np.repeat((0, 1, 2), 10)
    scores = score(objective("multilabel", "a", "b", "c"), table(truth, prediction, outputs))
    first, second, third, mean = scores.tasks
    assert first.value is not None
    assert second.value == pytest.approx(1 - first.value)
    assert third.undefined == "all 10 labels are 'no'"
    assert (mean.task, mean.metric, mean.value) == ("assay", "mean_auroc", pytest.approx(0.5))
    assert mean.notes == ("mean of 2 of 3 columns",)
    assert scores.stopping_metric == pytest.approx(0)  # the columns enter it as their mean alone


def test_censored_values_have_concordance() -> None:
    truth, prediction = noisy(40)
    censoring = np.where(truth < -0.5, BELOW, np.where(truth > 1, ABOVE, EXACT))
    values = np.clip(truth, -0.5, 1)
    (task,) = score(objective("regression", "a"), table(values, prediction, censoring=censoring)).tasks
    assert task.metric == "concordance"
    assert task.value is not None
    assert 0.6 < task.value < 0.95
    assert task.class_counts == {"exact": 26, "<": 10, ">": 4}
    exact = censoring == EXACT
    assert task.values["rmse"] == pytest.approx(math.sqrt(np.mean((truth - prediction)[exact] ** 2)))
    assert task.values["spearman"] == pytest.approx(stats.spearmanr(truth[exact], prediction[exact]).statistic)


def test_residues_are_resampled_by_protein() -> None:
    truth, prediction = noisy(200)
    rows = LabelRows(np.repeat(np.arange(10), 20), np.zeros(200, np.int64), truth, None, np.tile(np.arange(20), 10))
    (by_protein,) = score(objective("regression", "a"), LabelPredictions(rows, prediction)).tasks
    assert (by_protein.labels, by_protein.groups) == (200, 10)
    groups = np.repeat((7, 3), 5)
    (by_group,) = score(objective("regression", "a"), LabelPredictions(rows, prediction), groups).tasks
    assert by_group.groups == 2


def test_activity_threshold() -> None:
    truth, prediction = noisy(60)
    (task,) = score(objective("regression", "a", active_from=0.5), table(truth, prediction)).tasks
    assert task.values["auroc"] == pytest.approx(roc_auc_score(truth >= 0.5, prediction))
    assert task.values["positive_ratio"] == pytest.approx((truth >= 0.5).mean())
    (none_active,) = score(objective("regression", "a", active_from=9.0), table(truth, prediction)).tasks
    assert "auroc" not in none_active.values
    assert "no label is at least 9" in none_active.notes[0]


def test_activity_threshold_among_bounds() -> None:
    """A value below 0.5 is not active, one above 0.5 is, and one below 2 or above 0 may be either."""
    truth, prediction = noisy(60)
    truth[:8], censoring = [0.5, 0.5, 0.2, 0.7, 2.0, 2.0, 0.0, 0.0], np.full(60, EXACT)
    censoring[:8] = [BELOW, ABOVE, BELOW, ABOVE, BELOW, BELOW, ABOVE, ABOVE]
    (task,) = score(objective("regression", "a", active_from=0.5), table(truth, prediction, censoring=censoring)).tasks
    active = [False, True, False, True, *(truth[8:] >= 0.5)]
    decided = np.r_[0:4, 8:60]
    assert task.metric == "concordance"
    assert task.values["auroc"] == pytest.approx(roc_auc_score(active, prediction[decided]))
    assert "4 bounds do not show whether the value is at least 0.5" in task.notes[0]


UNDEFINED = [
    ("regression", [], [], "no label"),
    ("regression", range(9), range(9), "9 labels, fewer than 10"),
    ("regression", [2.0] * 12, range(12), "all 12 labels are equal"),
    ("binary", [1.0] * 12, [0.5] * 12, "all 12 labels are 'yes'"),
    ("binary", [1.0], [0.5], "1 label, fewer than 10"),
]


@pytest.mark.parametrize(("kind", "truth", "prediction", "reason"), UNDEFINED)
def test_undefined_tasks_are_listed(kind: str, truth: object, prediction: object, reason: str) -> None:
    scores = score(objective(kind, "a"), table(list(truth), list(prediction)))  # type: ignore[call-overload]
    (task,) = scores.undefined
    assert (task.value, task.undefined, scores.defined) == (None, reason, ())
    assert math.isnan(scores.stopping_metric)
    assert scores.numbers() == {}


def test_a_task_without_training_labels_is_undefined() -> None:
    of = replace(objective("regression", "a", "b"), num_labels=np.array([7, 0]))
    truth, prediction = noisy(40)
    first, second = score(of, table(truth, prediction, np.arange(40) % 2)).tasks
    assert (first.undefined, second.undefined) == ("", "training has no label of it")
    assert "rmse_unit" not in first.values  # nothing was transformed


def test_a_column_of_one_trained_class_is_undefined_and_in_no_mean() -> None:
    of = objective("multilabel", "a", "b", classes=("no", "yes"), trained=[[5, 5], [0, 9]])
    first, second, mean = score(of, table(np.tile(YES, 2), np.tile(SURE, 2), np.repeat([0, 1], 10))).tasks
    assert (first.undefined, second.undefined) == ("", "all of its training labels are 'yes'")
    assert (mean.value, mean.notes) == (first.value, ("mean of 1 of 2 columns",))


def test_large_logits_do_not_tie() -> None:
    """In float32 the probabilities of these logits are all 1, and the AUROC would be 0.5."""
    logits = torch.arange(20.0, 32.0)
    probabilities = activate(objective("binary", "a"), logits, torch.zeros(12, dtype=torch.int64))
    (task,) = score(objective("binary", "a"), table((np.arange(12) >= 8).astype(float), probabilities)).tasks
    assert task.value == 1.0


def test_undefined_classes() -> None:
    of = objective("multiclass", "where", classes=("in", "out", "never"), trained=[[3, 3, 0]])
    (task,) = score(of, table([0] * 11 + [2] * 4, np.full((15, 3), 1 / 3))).tasks
    assert task.undefined == "all 11 labels are 'in', without 4 of classes that were never trained"
    bounds = table(range(12), range(12), censoring=[BELOW] * 12)
    (censored,) = score(objective("regression", "a"), bounds).tasks
    assert censored.undefined == "no two of the 12 labels can be compared"


def test_constant_predictions_score_chance() -> None:
    truth, _ = noisy(20)
    (number,) = score(objective("regression", "a"), table(truth, np.ones(20))).tasks
    assert (number.value, number.values["pearson"], number.notes) == (0.0, 0.0, ("all predictions are equal",))
    (yes,) = score(objective("binary", "a"), table(YES, np.full(10, 0.3))).tasks
    assert (yes.value, yes.values["ap"], yes.values["mcc"]) == (0.5, pytest.approx(0.3), 0.0)
    thirds = np.full((30, 3), 1 / 3)
    (many,) = score(objective("multiclass", "a", classes=("x", "y", "z")), table(np.arange(30) % 3, thirds)).tasks
    assert (many.value, many.values["mcc"]) == (0.5, 0.0)
    (grade,) = score(objective("ordinal", "a", classes=("x", "y", "z")), table(np.arange(30) % 3, thirds)).tasks
    assert (grade.value, grade.skill) == (0.0, 0.0)


REFUSED = [
    ("regression", [1, 2], [1, math.nan], "record 1: the prediction is nan; a finite .*: lower schedule.peak_lr"),
    ("regression", [1, 2], [math.inf, math.nan], "record 0: the prediction is inf, and 1 others are like it"),
    ("binary", [1, 0], [0.5, math.nan], "record 1: the prediction is nan"),
    ("multiclass", [1, 0], [[0.2, 0.3, 0.5], [0.5, math.nan, 0.5]], "record 1: the prediction is nan"),
]


@pytest.mark.parametrize(("kind", "truth", "prediction", "said"), REFUSED)
def test_what_is_no_prediction_is_refused(kind: str, truth: object, prediction: object, said: str) -> None:
    of = objective(kind, "a", classes=("x", "y", "z") if kind == "multiclass" else ())
    with pytest.raises(ValueError, match=said):
        score(of, table(truth, prediction))


def test_stopping_metric_is_the_mean_skill_of_defined_tasks() -> None:
    def task(name: str, metric: str, value: float | None, **more: object) -> TaskScore:
        why = "" if value is not None else "no label"
        chance = 0.5 if metric == "auroc" else 0.0
        return TaskScore(name, "o", "binary", metric, chance, value, None, None, 10, 10, undefined=why, **more)  # type: ignore[arg-type]

    rows = (task("a", "auroc", 0.9), task("b", "spearman", 0.2), task("c", "auroc", None), task("d", "kendall", -0.1))
    scores = TaskScores((*rows, task("e", "auroc", 1.0, in_mean=False)))
    assert scores.stopping_metric == pytest.approx((0.8 + 0.2 - 0.1) / 3)
    assert scores.line() == "skill 0.300: a AUROC 0.900, b Spearman 0.200, d Kendall -0.100, e AUROC 1.000, 1 undefined"


def test_numbers_and_joined_scores() -> None:
    truth, prediction = noisy(30)
    both = np.concatenate([truth, [1.0]]), np.concatenate([prediction, [1.0]])
    scores = score(objective("regression", "a", "b"), table(*both, outputs=[0] * 30 + [1]))
    assert scores.numbers()["a"]["labels"] == 30
    joined = TaskScores.joined([scores, scores])
    assert len(joined.tasks) == 4


def test_a_number_that_is_not_finite_is_none_with_a_reason() -> None:
    (found,) = score(objective("regression", "a"), table(*noisy(20))).tasks
    lost = replace(found, values={**found.values, "rmse": math.inf})
    (task,) = TaskScores.joined([TaskScores((lost,))]).tasks
    assert (task.value, task.notes) == (found.value, ("RMSE is no finite number",))
    assert task.values == {name: value for name, value in found.values.items() if name != "rmse"}
    (task,) = TaskScores.joined([TaskScores((replace(found, value=math.nan, low=0.0, high=1.0),))]).tasks
    assert (task.value, task.low, task.high) == (None, None, None)
    assert task.undefined == "its Spearman is no finite number"
    assert TaskScores.joined([TaskScores((found,))]).tasks == (found,)
