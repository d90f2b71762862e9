"""Predictions and scores of one model are the same, to the last bit, whatever the processes that share the work."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from support.assays.small_run import write
from support.jobs import predicting_job
from support.jobs.predicting_job import PREDICTIONS, SCORES
from support.kept_runs import Ended, Trained, config
from support.launching import lines
from support.rank_pool import RankPool

pytestmark = [pytest.mark.launch, pytest.mark.xdist_group("finetune")]

PROGRAM = predicting_job.__name__
FULL, SHORT = ("adaptation.kind=full",), ("schedule.total_tokens=3_500",)


@pytest.fixture(scope="module")
def one(pool: RankPool, tmp_path_factory: pytest.TempPathFactory) -> Ended:
    """A run of one process, with what it predicted of its validation part when it ended."""
    return Trained(pool, write, tmp_path_factory, program=PROGRAM)("single", 1, FULL, SHORT)


def scores_of(folder: Path, rank: int) -> dict[str, dict[str, float]]:
    """What a process knows of the last validation."""
    found: dict[str, dict[str, float]] = json.loads((folder / SCORES.format(rank=rank)).read_text())
    assert {"affinity_a", "binds", "place", "grade", "state", "all_tasks"} < set(found)
    return found


@pytest.mark.parametrize(
    ("engine", "processes"),
    [
        *(("ddp", 2), ("zero3", 3)),
        pytest.param("fsdp2", 2, marks=pytest.mark.slow),
        *(pytest.param(engine, 3, marks=pytest.mark.prove) for engine in ("ddp", "fsdp2")),
    ],
)
def test_worlds_predict_and_score_alike(
    pool: RankPool, one: Ended, tmp_path: Path, engine: str, processes: int
) -> None:
    """The run has finished, and a start in another world predicts with its weights once more."""
    shutil.copytree(one.folder / "run", tmp_path / "run")
    words = [write(tmp_path), *SHORT, *FULL]
    done = pool.run(processes, config(engine), words, program=PROGRAM)
    assert done.status == 0, done.output
    for number in range(5):
        name = PREDICTIONS.format(objective=number)
        here, there = np.load(tmp_path / name), np.load(one.folder / name)
        assert set(here) == set(there)
        assert len(there["truth"]) > 10
        for array in there:
            np.testing.assert_array_equal(here[array], there[array], err_msg=f"{number}: {array}")
    scores = scores_of(one.folder, 0)
    for rank in range(processes):
        found = scores_of(tmp_path, rank)
        for task, numbers in scores.items():
            loss = numbers.get("loss", 0.0)
            assert found[task].pop("loss", 0.0) == pytest.approx(loss, rel=1e-14)  # ranks add up in another order
            assert found.pop(task) == {name: number for name, number in numbers.items() if name != "loss"}
        assert not found
    assert lines(tmp_path / "run/metrics.jsonl") == lines(one.folder / "run/metrics.jsonl")  # it wrote no score again
