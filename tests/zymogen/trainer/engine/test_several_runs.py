"""Several runs in one process, one after the other, as folds and ensembles are trained: each ends as one of its own."""

import json
from pathlib import Path

import pytest

from support.jobs import best_job
from support.kept_runs import CONSTANT, config
from support.launching import bit_equal, end_of
from support.rank_pool import RankPool

pytestmark = [pytest.mark.launch, pytest.mark.xdist_group("engines")]

PROGRAM = best_job.__name__
LENGTH = ("schedule.total_tokens=3_000", CONSTANT, "run.evaluate_every=2")
RELEASED = "0 models are left, and 0 trackers"


@pytest.mark.parametrize(
    ("engine", "processes"),
    [
        pytest.param("single", 1, marks=pytest.mark.slow),
        *(("ddp", 2), ("zero3", 2)),
        pytest.param("fsdp2", 2, marks=pytest.mark.slow),
        *(pytest.param(engine, 2, marks=pytest.mark.prove) for engine in ("zero1", "zero2")),
    ],
)
def test_the_second_run_of_a_process_ends_as_in_one_of_its_own(
    pool: RankPool, recipe_in, tmp_path: Path, engine: str, processes: int
) -> None:
    together, alone = recipe_in(tmp_path / "together"), recipe_in(tmp_path / "alone")
    both = pool.run(processes, config(engine), [together, *LENGTH, "seeds=2"], program=PROGRAM)
    assert both.status == 0, both.output
    assert [out.count(RELEASED) for out in both.outputs] == [2] * processes, both.output
    one = pool.run(processes, config(engine), [alone, *LENGTH, "first=1"], program=PROGRAM)
    assert one.status == 0, one.output
    second, own = end_of(together.parent / "run1"), end_of(alone.parent / "run1")
    assert (second.step, second.chain) == (own.step, own.chain)
    assert bit_equal(second, own)
    assert not bit_equal(second, end_of(together.parent / "run"))
    for name in ("run", "run1"):
        attempts = [json.loads(line) for line in (together.parent / name / "attempts.jsonl").read_text().splitlines()]
        assert [line["exit"] for line in attempts if "exit" in line] == ["finished"]
