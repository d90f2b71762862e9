"""A validation ranks alone, all outputs together, and gives each task the value that its full score has."""

from typing import Any

import numpy as np
import pytest
from scipy import stats
from sklearn.metrics import roc_auc_score

from finetune.metrics import concordance, ranking
from finetune.metrics.predictions import Predictions, Rows
from finetune.metrics.scoring import score
from finetune.metrics.validation import ranked
from finetune.tasks.objective import Objective
from finetune.tasks.settings import TaskSettings, TaskType


def drawn(kind: TaskType, outputs: int, rows: int, seed: int) -> tuple[Objective, Predictions]:
    """An objective of many outputs, some rare, constant or untrained, with ties and bounds."""
    rng = np.random.default_rng(seed)
    is_wide, is_number = kind in ("multiclass", "ordinal"), kind == "regression"
    classes = () if is_number else tuple("abcd"[: 4 if is_wide else 2])
    counts = rng.integers(0, 3, (outputs, len(classes)))
    ones = np.ones(outputs)
    names = tuple(f"t{number}" for number in range(outputs))
    settings = TaskSettings(name="assay", type=kind)
    objective = Objective(settings, names, classes, 0 * ones, ones, counts, "", rng.integers(0, 4, outputs))
    of = np.sort(rng.integers(0, outputs, rows) * rng.integers(0, 2, rows))
    truth = rng.integers(0, max(2, len(classes)), rows).astype(np.float64)
    truth = np.where(of % 7 == 3, 1.0, truth)
    prediction: Any = np.round(rng.uniform(size=rows), 1)
    censoring = None
    if is_number:
        truth = np.where(of % 7 == 3, 1.0, np.round(rng.normal(size=rows), 1))
        censoring = np.where(of % 5 == 0, rng.integers(-1, 2, rows), 0).astype(np.int8)
    if is_wide:
        prediction = np.round(rng.dirichlet(np.ones(4), rows), 1) / 2
    positions = np.arange(rows)
    return objective, Predictions(Rows(np.arange(rows) // 3, of, truth, censoring, positions), prediction)


@pytest.mark.parametrize("kind", ["regression", "binary", "multilabel", "multiclass", "ordinal"])
@pytest.mark.parametrize("seed", range(4))
def test_a_validation_has_the_bits_of_the_full_score(kind: TaskType, seed: int) -> None:
    objective, predictions = drawn(kind, 20, 600, seed)
    alone, full = ranked(objective, predictions), score(objective, predictions, intervals=False)
    shown = [[(t.task, t.metric, t.value, t.labels, t.in_mean) for t in scores.tasks] for scores in (alone, full)]
    assert shown[0] == shown[1]
    assert 2 < len(alone.defined) < len(alone.tasks)
    assert all(task.undefined for task in alone.undefined)
    np.testing.assert_equal(alone.stopping_metric, full.stopping_metric)


def test_values_are_those_of_scipy_and_scikit_learn() -> None:
    rng = np.random.default_rng(0)
    outputs = np.repeat(np.arange(5), 40)
    truth, prediction = np.round(rng.normal(size=(2, 200)), 1)
    rhos = ranking.spearman(outputs, truth, prediction, 6)
    areas = ranking.auroc(outputs, truth > 0, prediction, 6)
    for output in range(5):
        mine = outputs == output
        assert rhos[output] == pytest.approx(stats.spearmanr(truth[mine], prediction[mine]).statistic, abs=1e-14)
        assert areas[output] == pytest.approx(roc_auc_score(truth[mine] > 0, prediction[mine]), abs=1e-14)
    assert np.isnan([rhos[5], areas[5]]).all()


@pytest.mark.parametrize("outputs", [10, 1000])
def test_a_thousand_columns_take_as_many_sorts_as_ten(outputs: int, monkeypatch: pytest.MonkeyPatch) -> None:
    objective, predictions = drawn("multilabel", outputs, 12 * outputs, 0)
    sorts: list[int] = []
    real = np.lexsort

    def counted(keys: Any) -> Any:
        sorts.append(len(keys[0]))
        return real(keys)

    def refused(*_: object) -> None:
        raise AssertionError("a column was taken by itself")

    monkeypatch.setattr(np, "lexsort", counted)
    monkeypatch.setattr(concordance, "concordance", refused)
    monkeypatch.setattr("finetune.metrics.scoring.screening", refused)
    assert len(ranked(objective, predictions).tasks) == outputs + 1
    assert sorts == [len(predictions.rows)]
