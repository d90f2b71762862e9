"""Numerical faults on several processes, and under launchers: all ranks start over, and no restart passes the fault."""

import subprocess
import sys
from pathlib import Path

import pytest
from accelerate.utils.other import get_free_port

from pretrain.inspect.__main__ import main as inspect
from support.chaos import leaping_loss
from support.jobs.numerical_faults import BAD_BINS
from support.kept_runs import STEPS_12, Trained, begun, config, distances, ends, same, yardstick
from support.launching import LIMIT_S, command, end_of, environment, lines, run
from support.places import ROOT
from support.rank_pool import RankPool

SAVES = "run.checkpoint_every=4"
SKIP = f"data.skip_bins=[{','.join(map(str, BAD_BINS))}]"


@pytest.mark.launch
@pytest.mark.xdist_group("engines")
def test_all_ranks_fall_back_at_one_step(pool: RankPool, trained: Trained, recipe_in, tmp_path: Path) -> None:
    once = recipe_in(tmp_path / "once")
    done = pool.run(2, config("ddp"), [once, *STEPS_12, SAVES], fault="not_finite_once")
    assert done.status == 0, done.output
    assert begun(tmp_path / "once/run") == [0, 4]
    assert same(end_of(tmp_path / "once/run"), trained("ddp", 2, length=STEPS_12).end)

    words, run = [recipe_in(tmp_path / "always"), *STEPS_12, SAVES], tmp_path / "always/run"
    done = pool.run(2, config("ddp"), words, fault="bad_bins")
    assert done.statuses == (78, 78), done.output
    assert (begun(run), ends(run)) == ([0, 4], ["error", "input"])
    assert all("up to step 7, where it was met before" in said for said in done.outputs)
    done = pool.run(2, config("ddp"), [*words, SKIP, "--allow-schedule-change"], fault="bad_bins")
    assert done.status == 0, done.output
    assert end_of(run).chain == trained("single", 1, [SKIP], STEPS_12).end.chain
    assert inspect(["audit", str(run)]) == 0


@pytest.mark.launch
@pytest.mark.xdist_group("engines")
@pytest.mark.parametrize("engine", ["ddp", "fsdp2"])
def test_any_engine_leaves_out_the_same(engine: str, trained: Trained) -> None:
    """Under FSDP2, all ranks pass through the model together, with empty bins, too."""
    overrides = [SKIP, "data.bins_per_forward=2"]
    weights, losses = distances(trained("single", 1, [SKIP], STEPS_12), trained(engine, 2, overrides, STEPS_12))
    by_weights, by_losses = yardstick(trained, [SKIP], STEPS_12)
    assert weights <= 10 * by_weights
    assert losses <= 10 * by_losses


@pytest.mark.launch
@pytest.mark.slow
@pytest.mark.xdist_group("engines")
def test_no_restart_of_a_launcher_passes_the_fault(recipe_in, tmp_path: Path) -> None:
    """Ranks are replaced in place, and the launcher, which starts failed ones again, is refused each time."""
    recipe, directory = recipe_in(tmp_path), tmp_path / "run"
    words = command([recipe, SAVES], 2, program=leaping_loss.__name__)
    place = words.index("--num_processes")
    restarts = [*words[:place], "--max_restarts", "1", *words[place:]]
    done = run(restarts)
    assert done.status != 0, done.output
    first, second = (line for line in lines(directory / "attempts.jsonl") if "base_step" in line)
    assert (first["base_step"], second["base_step"]) == (0, 20)
    assert first["pid"] == second["pid"]
    assert "the numerical fault at step 22, which stopped attempt 2, would come again" in done.output
    assert not (directory / "export").exists()
    # Each of 2 ranks began as 1 process that was replaced, and was started once more; none held anything.
    assert done.output.count(leaping_loss.HELD.format([], [])) == 2 * (2 + 1)


@pytest.mark.launch
@pytest.mark.slow
def test_ranks_without_a_common_launcher_start_over_together(recipe_in, tmp_path: Path) -> None:
    """Rank 0 has the store: its port is free again, and rank 1 does not meet the store of the process before."""
    words = [sys.executable, "-m", leaping_loss.__name__, str(recipe_in(tmp_path)), SAVES, "data.workers=1"]
    shared = {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(get_free_port()),
        "WORLD_SIZE": "2",
        "LOCAL_WORLD_SIZE": "2",
    }
    shared |= environment() | {"ACCELERATE_USE_CPU": "true", "ACCELERATE_MIXED_PRECISION": "no"}
    logs = [tmp_path / f"rank-{rank}" for rank in range(2)]
    ranks = [
        subprocess.Popen(
            words,
            cwd=ROOT,
            env=shared | {"RANK": str(rank), "LOCAL_RANK": str(rank)},
            stdout=log.open("w"),
            stderr=subprocess.STDOUT,
        )
        for rank, log in enumerate(logs)
    ]
    try:
        assert [rank.wait(LIMIT_S) for rank in ranks] == [78, 78], "".join(log.read_text() for log in logs)
    finally:
        for rank in ranks:
            rank.kill()
    assert begun(tmp_path / "run") == [0, 20]
    assert ranks[0].pid == lines(tmp_path / "run/attempts.jsonl")[-2]["pid"]
    assert [log.read_text().count(leaping_loss.HELD.format([], [])) for log in logs] == [2, 2]
