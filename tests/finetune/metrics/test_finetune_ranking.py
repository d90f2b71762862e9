"""A validation ranks and does nothing else, and gives each task the value that its full score has."""

from typing import Any

import numpy as np
import pytest
from scipy import stats
from sklearn.metrics import roc_auc_score

from finetune.metrics import weighted
from finetune.metrics.predictions import LabelPredictions, LabelRows
from finetune.metrics.scoring import score
from finetune.tasks.settings import TaskSettings
from finetune.tasks.task import Task


def drawn(kind: str, outputs: int, rows: int, seed: int) -> tuple[Task, LabelPredictions]:
    """An objective of many outputs, some rare, constant or untrained, with ties and bounds."""
    rng = np.random.default_rng(seed)
    is_wide, is_number = kind in ("multiclass", "ordinal"), kind == "regression"
    classes = () if is_number else tuple("abcd"[: 4 if is_wide else 2])
    counts = rng.integers(0, 3, (outputs, len(classes)))
    ones = np.ones(outputs)
    names = tuple(f"t{number}" for number in range(outputs))
    settings = TaskSettings(name="assay", type=kind)
    objective = Task(settings, names, classes, 0 * ones, ones, counts, "", rng.integers(0, 4, outputs))
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
    return objective, LabelPredictions(LabelRows(np.arange(rows) // 3, of, truth, censoring, positions), prediction)


@pytest.mark.parametrize("kind", ["regression", "binary", "multilabel", "multiclass", "ordinal"])
@pytest.mark.parametrize("seed", range(4))
def test_a_validation_has_the_bits_of_the_full_score(kind: str, seed: int) -> None:
    objective, predictions = drawn(kind, 20, 600, seed)
    alone, full = score(objective, predictions, ranks_only=True), score(objective, predictions, intervals=False)
    shown = [[(t.task, t.metric, t.value, t.labels, t.in_mean) for t in scores.tasks] for scores in (alone, full)]
    assert shown[0] == shown[1]
    assert 2 < len(alone.defined) < len(alone.tasks)
    assert all(task.undefined for task in alone.undefined)
    np.testing.assert_equal(alone.stopping_metric, full.stopping_metric)


def test_values_are_those_of_scipy_and_scikit_learn() -> None:
    """Of each output by its own rows, whatever their order in the table."""
    rng = np.random.default_rng(0)
    outputs = rng.permutation(np.repeat(np.arange(5), 40))
    truth, prediction = np.round(rng.normal(size=(2, 200)), 1)
    own = [outputs == output for output in range(5)]

    def values(kind: str, truth: Any, prediction: Any) -> list[float | None]:
        classes = () if kind == "regression" else tuple("abcd"[: 2 if prediction.ndim == 1 else 4])
        names, counts = tuple("uvwxyz"), np.ones((6, len(classes)))
        objective = Task(TaskSettings(name="y", type=kind), names, classes, np.zeros(6), np.ones(6), counts, "")
        predictions = LabelPredictions(LabelRows(np.arange(200), outputs, truth), prediction)
        found = score(objective, predictions, ranks_only=True)
        assert [task.task for task in found.tasks] == list(names)
        return [task.value for task in found.tasks]

    rhos = [stats.spearmanr(truth[mine], prediction[mine]).statistic for mine in own]
    assert values("regression", truth, prediction) == [*(pytest.approx(rho, abs=1e-14) for rho in rhos), None]
    yes, probability = (truth > 0).astype(np.float64), np.round(rng.uniform(size=200), 1)
    areas = [roc_auc_score(yes[mine], probability[mine]) for mine in own]
    assert values("binary", yes, probability) == [*(pytest.approx(area, abs=1e-14) for area in areas), None]
    index, wide = rng.integers(0, 4, 200).astype(np.float64), rng.dirichlet(np.ones(4), 200)
    means = [
        np.mean([roc_auc_score(index[mine] == of, wide[mine][:, of]) for of in np.unique(index[mine]).astype(int)])
        for mine in own
    ]
    assert values("multiclass", index, wide) == [*(pytest.approx(mean, abs=1e-14) for mean in means), None]
    taus = [stats.kendalltau(index[mine], wide[mine] @ np.arange(4)).statistic for mine in own]
    assert values("ordinal", index, wide) == [*(pytest.approx(tau, abs=1e-14) for tau in taus), None]


@pytest.mark.parametrize("outputs", [10, 1000])
def test_a_thousand_columns_cost_a_sort_of_their_own_rows(outputs: int, monkeypatch: pytest.MonkeyPatch) -> None:
    objective, predictions = drawn("multilabel", outputs, 12 * outputs, 0)
    sorts: list[int] = []
    real = np.argsort

    def counted(values: Any, **more: Any) -> Any:
        sorts.append(len(values))
        return real(values, **more)

    def refused(*_: object) -> None:
        raise AssertionError("a metric was computed that no validation needs")

    monkeypatch.setattr(np, "argsort", counted)
    monkeypatch.setattr(weighted, "concordance", refused)
    monkeypatch.setattr("finetune.task_types.classes.enrichment_metrics", refused)
    assert len(score(objective, predictions, ranks_only=True).tasks) == outputs + 1
    assert len(sorts) == outputs + 1
    assert sum(sorts) == 2 * len(predictions.rows)
