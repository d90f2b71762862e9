"""Runs of several tables: the same on one process, on two and continued; and what they write says which table."""

import csv
import json
from pathlib import Path

import pytest

from support.assays.small_run import rows, write
from support.jobs import fine_tuning_job
from support.kept_runs import CONSTANT, Trained, config
from support.launching import bit_equal, end_of, largest_difference
from support.rank_pool import RankPool

pytestmark = [pytest.mark.launch, pytest.mark.xdist_group("finetune")]

PROGRAM = fine_tuning_job.__name__
MIXED = ("data.temperature=2",)
FEW = 24
"""Rows of the second table, of which the last four are in the first one too."""


def two(folder: Path) -> Path:
    """The small table in two, whose rows have no id."""
    path = write(folder, lambda given: [row | {"name": ""} for row in given[FEW - 4 :]])
    with (folder / "more.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows()[0]))
        writer.writeheader()
        writer.writerows(row | {"name": ""} for row in rows()[:FEW])
    path.write_text(
        path.read_text().replace('table = "', 'table = ["').replace('assays.csv"', f'assays.csv", "{folder}/more.csv"]')
    )
    return path


@pytest.fixture(scope="module")
def tuned(pool: RankPool, tmp_path_factory: pytest.TempPathFactory) -> Trained:
    return Trained(pool, two, tmp_path_factory, program=PROGRAM)


def test_two_processes_train_what_one_does(tuned: Trained) -> None:
    one, both = tuned("single", 1, MIXED), tuned("ddp", 2, MIXED)
    assert both.end.chain == one.end.chain
    assert largest_difference(both.end, one.end) < 5e-6


def test_a_run_that_was_stopped_ends_at_the_same_bytes(pool: RankPool, tuned: Trained, tmp_path: Path) -> None:
    whole = tuned("single", 1, MIXED)
    words = [two(tmp_path), *MIXED, CONSTANT, "--allow-schedule-change"]
    for tokens in (3_500, 11_800):
        done = pool.run(1, config("single"), [*words, f"schedule.total_tokens={tokens}"], program=PROGRAM)
        assert done.status == 0, done.output
    assert "continuing" in done.outputs[0]
    assert bit_equal(end_of(tmp_path / "run"), whole.end)


@pytest.mark.slow
def test_a_whole_run_names_its_tables(pool: RankPool, tmp_path: Path) -> None:
    """From the tables to the bundle: every file that names proteins says of which table a row is."""
    words = [two(tmp_path), *MIXED, "schedule.total_tokens=3_500", "split.search_pretraining=false"]
    done = pool.run(1, config("single"), words, program="finetune.__main__", timeout_s=200)
    assert done.status == 0, done.output
    run = tmp_path / "run"
    for path in (run / "split.csv", run / "bundle/split.csv", run / "predictions.csv"):
        with path.open(newline="") as file:
            ids = {line["id"] for line in csv.DictReader(file)}
        assert ids
        assert {name.split(":row-")[0] for name in ids} == {"assays", "more"}
    described = json.loads((run / "run.json").read_text())["corpus"]
    assert list(described["tables"].values()) == [140, FEW]
    # Of 93 draws for 83 and 13 training records, three of which are in both: 93 * 83^(1/2) / (83^(1/2) + 13^(1/2)).
    assert [tuple(each.values()) for each in described["drawn"].values()] == [(83, 67), (13, 26)]
    assert f"table {tmp_path}/more.csv: {FEW} distinct" in " ".join(done.output.split())
