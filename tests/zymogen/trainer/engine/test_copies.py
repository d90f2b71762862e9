"""Ranks that must hold the same weights and do not: noticed, named, not saved; and the digests of any engine's end."""

import json
from pathlib import Path

import pytest

from support.checkpoint_run import digest_by_hand, identity_by_hand
from support.kept_runs import STEPS_12, STEPS_30, Trained, config
from support.launching import DDP, bit_equal, end_of, lines, whole_tensors
from support.rank_pool import RankPool
from zymogen.trainer.checkpoint.load import verify

pytestmark = [pytest.mark.launch, pytest.mark.xdist_group("engines")]

EVERY_5 = "run.compare_copies_every=5"
AT_SAVES = "run.compare_copies_every=1000"
SPREADS = [
    ("ddp", 2, EVERY_5, 15, "are not alike, and which of them is right, 2 cannot say", ()),
    ("ddp", 3, EVERY_5, 15, "differs from the 2 others", (pytest.mark.prove,)),
    ("ddp", 3, AT_SAVES, 20, "differs from the 2 others", (pytest.mark.slow,)),
    ("hsdp", 4, EVERY_5, 15, "are not alike, and which of them is right, 2 cannot say", (pytest.mark.prove,)),
]


@pytest.mark.parametrize(
    ("engine", "processes", "every", "step", "verdict"),
    [pytest.param(*case[:5], id=f"{case[0]}-{case[1]}-{case[3]}", marks=case[5]) for case in SPREADS],
)
def test_a_flipped_bit_is_noticed_and_the_run_continues_from_before_it(
    pool: RankPool, trained: Trained, recipe_in, tmp_path: Path, engine: str, processes: int, every: str, step: int,
    verdict: str,
) -> None:  # fmt: skip
    """Rank 1 gets another bit after step 12; the last save before it is that of step 10."""
    run, words = tmp_path / "run", [recipe_in(tmp_path), every]
    failed = pool.run(processes, config(engine), words, fault="flips_a_bit")
    assert failed.statuses[0] == 70
    named = f"after step {step}, ranks that must hold the same weights differ in 1 of "
    assert named in failed.outputs[0]
    assert "first in 'encoder.layers.1." in failed.outputs[0]
    assert verdict in failed.outputs[0]
    assert "rank 1 (" in failed.outputs[0]
    assert "nothing of this is saved, the newest checkpoint is step-000000010" in failed.outputs[0]
    assert "Traceback" not in failed.outputs[0]
    assert sorted(path.name for path in (run / "checkpoints").glob("step-*")) == ["step-000000010"]
    assert [line["exit"] for line in lines(run / "attempts.jsonl") if "exit" in line] == ["error"]
    done = pool.run(processes, config(engine), words)
    assert done.status == 0, done.output
    assert bit_equal(end_of(run), trained(engine, processes, (), STEPS_30).end)


@pytest.mark.slow
def test_control_what_is_not_compared_is_not_noticed(
    pool: RankPool, trained: Trained, recipe_in, tmp_path: Path
) -> None:
    words = [recipe_in(tmp_path), "run.compare_copies_every=0"]
    assert pool.run(2, DDP, words, fault="flips_a_bit").status == 0
    assert not bit_equal(end_of(tmp_path / "run"), trained("ddp", 2, (), STEPS_30).end)


@pytest.mark.parametrize(
    ("engine", "processes"),
    [
        *(("single", 1), ("ddp", 2), ("fsdp2", 2), ("zero3", 2)),
        pytest.param("hsdp", 4, marks=pytest.mark.prove),
        pytest.param("zero2", 2, marks=pytest.mark.slow),
    ],
)
def test_the_digest_is_that_of_the_whole_tensors_under_every_engine(
    trained: Trained, engine: str, processes: int
) -> None:
    """So it is what any other engine would write of the same state."""
    path = sorted((trained(engine, processes, (), STEPS_12).folder / "run/checkpoints").glob("step-*"))[-1]
    tensors = {}
    for part in ("model", "optimizer"):
        index = json.loads((path / part / "index.json").read_text())["tensors"]
        for name, whole in whole_tensors(path / part).items():
            tensors[f"{part}/{name}"] = whole
            assert index[name]["digest"] == digest_by_hand(whole), name
    assert verify(path).manifest.digest == identity_by_hand(tensors)
    assert len(tensors) > 30


@pytest.mark.parametrize(("engine", "processes"), [("fsdp2", 2), pytest.param("zero3", 2, marks=pytest.mark.slow)])
def test_a_rank_that_loads_something_else_ends_the_start(
    pool: RankPool, trained: Trained, recipe_in, tmp_path: Path, engine: str, processes: int
) -> None:
    words = [recipe_in(tmp_path), *STEPS_12]
    assert pool.run(processes, config(engine), [*words, "schedule.total_tokens=1"]).status == 0
    failed = pool.run(processes, config(engine), [*words, "--allow-schedule-change"], fault="loads_another_bit")
    assert failed.statuses == (70,) * processes
    assert "1 of " in failed.outputs[0]
    assert "tensors are not what was saved, after they were read from files that are: ['model/" in failed.outputs[0]
