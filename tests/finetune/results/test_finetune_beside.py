"""The baselines of a run: each is there or says why not, within a bound on their time."""

import itertools

import numpy as np
import pytest

from finetune.baselines.baseline import PartRecords, TaskBaseline
from finetune.labels.labels import Labels
from finetune.results import baselines as of_beside
from finetune.results.baselines import CONSTANT, FROZEN, NEAREST, RESIDUES, fit_baselines
from finetune.tasks.settings import TaskSettings
from finetune.tasks.task import Task


def test_every_baseline_is_there_or_says_why_not(monkeypatch: pytest.MonkeyPatch) -> None:
    one = np.ones(1)
    of = Task(TaskSettings(name="t", type="regression"), ("t0",), (), 0 * one, one, np.zeros((1, 0), np.int64))
    count = 30
    sequences = ["ACDEFGHIKL"[: n % 10] + "W" + "ACDEFGHIKL"[n % 10 + 1 :] for n in range(count)]
    values = np.arange(count, dtype=np.float32) % 10
    labels = Labels(np.arange(count + 1), np.zeros(count, np.int32), values)
    parts = PartRecords(np.arange(0, 15), np.arange(15, 20), np.arange(20, 30))
    found = dict(
        fit_baselines(
            of, labels, parts, sequences, "more than adaptation.cache_gb", of_beside.time.monotonic(), pytest.fail
        )
    )
    assert list(found) == [CONSTANT, RESIDUES, FROZEN, NEAREST]
    assert found[FROZEN] == "more than adaptation.cache_gb"
    nearest = found[NEAREST]
    assert isinstance(nearest, TaskBaseline)
    assert nearest.predictions.prediction.tolist() == values[20:].tolist()
    ticks = itertools.count(0.0, 100.0)
    monkeypatch.setattr(of_beside.time, "monotonic", lambda: next(ticks))
    monkeypatch.setattr(of_beside, "MOST_S", 150.0)
    late = dict(
        fit_baselines(
            of, labels, parts, sequences, "more than adaptation.cache_gb", of_beside.time.monotonic(), pytest.fail
        )
    )
    assert [name for name, each in late.items() if isinstance(each, TaskBaseline)] == [CONSTANT, RESIDUES]
    assert late[NEAREST] == "the baselines before it took more than 150 s"
