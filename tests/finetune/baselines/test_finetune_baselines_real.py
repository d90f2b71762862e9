"""Baselines and metrics on real assays, where a folder beside the project holds them."""

import csv
import gzip
import io
import zipfile
from itertools import pairwise

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.stats import spearmanr

from finetune.baselines.baseline import PartRecords, constant
from finetune.baselines.features import one_hot
from finetune.baselines.nearest import nearest_neighbour
from finetune.baselines.ridge import linear
from finetune.labels.labels import Labels
from finetune.metrics.scores import TaskScores
from finetune.metrics.scoring import score
from finetune.tasks.settings import TaskSettings
from finetune.tasks.task import Task
from support.places import REAL

DATA = REAL.parent
BLAT = DATA / "zeroshot" / "BLAT_ECOLX_Ranganathan2015_labeled.csv.gz"
GB1 = DATA / "assay" / "flip_gb1_splits.zip"
CHEMBL = [DATA / "ligand" / f"chembl_5thresh_timesplit_{part}.csv.gz" for part in ("train", "valid", "test")]
pytestmark = pytest.mark.skipif(not BLAT.exists(), reason="no real assays beside the project (shared/data)")


def rows_in(path: object) -> list[dict[str, str]]:
    with gzip.open(path, "rt") as file:  # type: ignore[call-overload]
        return list(csv.DictReader(file))


def regression(
    names: list[str], table: NDArray[np.float64], parts: PartRecords, active_from: float | None = None
) -> tuple[Task, Labels]:
    seen = ~np.isnan(table)
    pointers = np.concatenate([[0], np.cumsum(seen.sum(1))])
    labels = Labels(pointers, np.nonzero(seen)[1].astype(np.int32), table[seen].astype(np.float32))
    counts = np.maximum(1, seen[parts.train].sum(0))
    train = np.where(seen[parts.train], table[parts.train], 0)
    mean = train.sum(0) / counts
    spread = np.sqrt((np.where(seen[parts.train], train - mean, 0) ** 2).sum(0) / counts)
    spread = np.where(spread > 0, spread, 1)
    classes = np.zeros((len(names), 0), np.int64)
    settings = TaskSettings(name="assay", type="regression", active_from=active_from)
    return Task(settings, tuple(names), (), mean, spread, classes), labels


def test_published_correlations_on_beta_lactamase() -> None:
    rows = rows_in(BLAT)
    truth = np.array([float(row["2500"]) for row in rows])
    models = np.array([[float(row[f"esm1v_t33_650M_UR90_{number}"]) for number in range(1, 6)] for row in rows])
    parts = PartRecords(*[np.arange(len(rows))] * 3)
    each = [spearmanr(truth, of_model).statistic for of_model in models.T]
    assert each == pytest.approx([0.6619, 0.6632, 0.6449, 0.6865, 0.7064], abs=5e-5)
    of, labels = regression(["2500"], truth[:, None], parts)
    predictions = constant(of, labels, parts).predictions
    (task,) = score(of, type(predictions)(predictions.rows, models.mean(1))).tasks
    assert task.value == pytest.approx(0.7026, abs=5e-5)


def test_one_hot_ridge_on_gb1() -> None:
    """FLIP publishes a Spearman of 0.34 for a ridge on one-hot residues, of the split low_vs_high."""
    with zipfile.ZipFile(GB1) as archive:
        rows = list(csv.DictReader(io.TextIOWrapper(archive.open("splits/low_vs_high.csv"))))
    of_row = [row["set"] if row["validation"] != "True" else "valid" for row in rows]
    parts = PartRecords(*(np.flatnonzero(np.array(of_row) == part) for part in ("train", "valid", "test")))
    assert [len(part) for part in parts] == [4580, 509, 3644]
    sequences = [row["sequence"] for row in rows]
    of, labels = regression(["fitness"], np.array([[float(row["target"])] for row in rows]), parts)
    scores: dict[str, TaskScores] = {}
    for found in (
        linear("ridge on residues", of, labels, parts, one_hot(sequences)),
        nearest_neighbour(of, labels, parts, sequences, pytest.fail),
        constant(of, labels, parts),
    ):
        scores[found.name] = score(of, found.predictions)
    values = {name: found.tasks[0].value for name, found in scores.items()}
    assert values == {
        "ridge on residues": pytest.approx(0.345, abs=0.01),
        "nearest neighbour": pytest.approx(0.027, abs=0.005),
        "mean": 0.0,
    }
    assert scores["mean"].tasks[0].notes == ("all predictions are equal",)


@pytest.mark.slow
def test_every_task_of_chembl_has_a_value_or_a_reason() -> None:
    tables = []
    for path in CHEMBL:
        with gzip.open(path, "rt") as file:
            names = next(reader := csv.reader(file))[1:]
            tables.append(np.array([[float(cell or "nan") for cell in row[1:]] for row in reader]))
    assert [len(table) for table in tables] == [14620, 4000, 5252]
    assert sum(int((~np.isnan(table)).sum()) for table in tables) == 91_051
    assert [int((~np.isnan(table)).any(0).sum()) for table in tables] == [562, 503, 564]
    ends = np.cumsum([0, *map(len, tables)]).tolist()
    parts = PartRecords(*(np.arange(start, end) for start, end in pairwise(ends)))
    of, labels = regression(names, np.concatenate(tables), parts, active_from=6.5)
    scores = score(of, constant(of, labels, parts).predictions)
    counts = (~np.isnan(tables[2])).sum(0)
    varies = np.array([len(np.unique(column[~np.isnan(column)])) > 1 for column in tables[2].T])
    assert [task.task for task in scores.defined] == [names[i] for i in np.flatnonzero((counts >= 10) & varies)]
    assert len(scores.tasks) == len(scores.defined) + len(scores.undefined) == 691
    reasons = [task.undefined for task in scores.undefined]
    assert reasons.count("no label") == 691 - 564
    assert sum("fewer than 10" in reason for reason in reasons) == int(((counts > 0) & (counts < 10)).sum())
    for task in scores.defined:
        active = tables[2][:, names.index(task.task)] >= 6.5
        known = ~np.isnan(tables[2][:, names.index(task.task)])
        both = 0 < active[known].sum() < known.sum()
        assert ({"auroc", "ap"} <= task.values.keys()) == both
        assert both or any("label is at least 6.5" in note for note in task.notes)
    assert scores.stopping_metric == 0
