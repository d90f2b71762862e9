"""What is scored is what is shipped: scores, predictions.csv, predict and compare have the same numbers."""

import csv
from pathlib import Path

import numpy as np
import pytest
from scipy import stats
from sklearn.metrics import (
    accuracy_score,
    average_precision_score,
    cohen_kappa_score,
    f1_score,
    matthews_corrcoef,
    roc_auc_score,
)

from finetune.bundle.columns import task_columns
from finetune.compare.paired import compare
from finetune.compare.predicted import ComparedPredictions, _tasks
from finetune.metrics.predictions import LabelPredictions, LabelRows
from finetune.metrics.scores import TaskScore, TaskScores
from finetune.metrics.scoring import score
from finetune.results import predictions_file
from finetune.results.calibration import Calibration, fit_calibration
from finetune.results.merge import MergedPredictions, merge_folds, with_calibration
from finetune.results.results import Results
from finetune.tasks.settings import TaskSettings
from finetune.tasks.task import Task

SIZE = 1300
"""From 1,000 labels on the calibration of yes and no is isotonic, and makes most probabilities equal."""
RNG = np.random.Generator(np.random.Philox(39))
CLASSES = {"regression": (), "binary": ("no", "yes"), "multiclass": ("in", "out", "wall"), "ordinal": ("a", "b", "c")}
COMPARED = {"regression": "spearman", "binary": "auroc", "multiclass": "macro_auroc", "ordinal": "kendall"}


def objective(kind: str) -> Task:
    classes = CLASSES[kind]
    settings = TaskSettings(name="t", type=kind, transform="p" if kind == "regression" else "none")  # type: ignore[arg-type]
    counts = np.full((1, len(classes)), 9, np.int64)
    return Task(settings, ("t",), classes, np.array([6.0]), np.ones(1), counts, "nM", np.array([9]))


def predictions(kind: str, first: int = 0, size: int = SIZE) -> LabelPredictions:
    """Predictions of a model that is too sure, in float32 as a model gives them."""
    signal, noise = RNG.normal(size=(2, size))
    guess = signal + noise
    if kind == "regression":
        truth, prediction = (6 + signal).round(2), 6 + guess
    elif kind == "binary":
        truth, prediction = (signal > 0.7).astype(np.float64), 1 / (1 + np.exp(-3 * guess))
    else:
        truth = np.digitize(signal, (-0.5, 0.5)).astype(np.float64)
        away = np.exp(-3 * (guess[:, None] - np.array([-1.0, 0, 1])) ** 2)
        prediction = away / away.sum(1, keepdims=True)
    rows = LabelRows(np.arange(first, first + size), np.zeros(size, np.int64), truth)
    return LabelPredictions(rows, prediction.astype(np.float32).astype(np.float64))


def written(folder: Path, of: Task, joined: MergedPredictions) -> list[dict[str, str]]:
    predictions_file.write(folder / "predictions.csv", [("test", [of], [joined])], str)
    with (folder / "predictions.csv").open() as file:
        return list(csv.DictReader(file))


def recomputed(kind: str, lines: list[dict[str, str]]) -> dict[str, float]:
    """Scores from the columns of predictions.csv alone."""
    truth, called = ([line[name] for line in lines] for name in ("truth", "prediction"))
    ranks = np.array([line["ranking"].split() for line in lines], np.float64)
    names = list(CLASSES[kind])
    if kind == "regression":
        numbers = np.array(truth, np.float64)
        error = np.sqrt(np.mean((numbers - np.array(called, np.float64)) ** 2))
        return {"spearman": float(stats.spearmanr(numbers, ranks[:, 0]).statistic), "rmse_unit": float(error)}
    index, of_called = ([names.index(word) for word in words] for words in (truth, called))
    found = {"mcc": matthews_corrcoef(truth, called)}
    if kind == "binary":
        yes = np.array(truth) == "yes"
        found |= {"auroc": roc_auc_score(yes, ranks[:, 0]), "ap": average_precision_score(yes, ranks[:, 0])}
        return found | {"f1": f1_score(truth, called, pos_label="yes")}
    found |= {"accuracy": accuracy_score(truth, called), "macro_f1": f1_score(truth, called, average="macro")}
    if kind == "multiclass":
        each = [roc_auc_score(np.array(index) == n, ranks[:, n]) for n in range(3)]
        return found | {"macro_auroc": float(np.mean(each))}
    kappa = cohen_kappa_score(index, of_called, weights="quadratic")
    return found | {"kendall": stats.kendalltau(index, ranks[:, 0]).statistic, "quadratic_kappa": kappa}


def joined_of(kind: str, folds: bool) -> tuple[Task, MergedPredictions, Calibration | None]:
    of = objective(kind)
    if folds:
        each = [predictions(kind, 1000 * fold, 600) for fold in range(3)]
        plain = [with_calibration(of, one, None, [Calibration()]) for one in each]
        return of, merge_folds(plain, [of] * 3), None
    (calibration,) = fit_calibration(of, predictions(kind))
    return of, with_calibration(of, predictions(kind), None, [calibration]), calibration


@pytest.mark.parametrize("folds", [False, True], ids=["one part", "folds"])
@pytest.mark.parametrize("kind", list(CLASSES))
def test_scores_are_those_of_predictions_csv_and_of_compare(kind: str, folds: bool, tmp_path: Path) -> None:
    of, joined, _ = joined_of(kind, folds)
    (task,) = score(of, joined.predictions, calibrated=joined.calibrated).tasks
    lines = written(tmp_path, of, joined)
    found, expected = {**task.values, task.metric: task.value}, recomputed(kind, lines)
    assert {name: found[name] for name in expected} == pytest.approx(expected, rel=1e-6)
    run = _run(tmp_path, of, task)
    (difference,) = compare(run, run).differences
    assert task.metric == COMPARED[kind]
    assert difference.values[0] == pytest.approx(task.value, abs=1e-6)


def _run(folder: Path, of: Task, task: TaskScore) -> ComparedPredictions:
    results = Results("test", TaskScores((task,)), None, (), (), (), (), (), "random", "5" * 32, None)
    tasks = _tasks(folder / "predictions.csv", {str(number): str(number) for number in range(5000)})
    return ComparedPredictions(folder, results, (of,), tasks, {name: name for name, _ in tasks["t"]})


@pytest.mark.parametrize("kind", list(CLASSES))
def test_predict_gives_the_cells_of_predictions_csv(kind: str, tmp_path: Path) -> None:
    of, joined, calibration = joined_of(kind, False)
    assert calibration is not None
    assert (calibration.isotonic is not None) is (kind == "binary")
    lines = written(tmp_path, of, joined)
    ((_, columns),) = task_columns([of], {("t", "t"): calibration}, 1, [])
    values = columns.values([joined.predictions.prediction[:, None]])
    called = [each if isinstance(each, str) else f"{each:.7g}" for each in values[0]]
    assert called == [line["prediction"] for line in lines]
    if kind == "regression":
        assert [f"{each:.7g}" for each in values[1]] == [line["low"] for line in lines]
    elif kind == "binary":
        assert [f"{each:.7g}" for each in values[1]] == [line["probability"] for line in lines]
    else:
        of_called = [values[1 + CLASSES[kind].index(str(name))][row] for row, name in enumerate(values[0])]
        assert [f"{each:.7g}" for each in of_called] == [line["probability"] for line in lines]
