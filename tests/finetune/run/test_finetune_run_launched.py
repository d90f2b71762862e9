"""The command that a user types, really launched: on every engine's YAML, and interrupted in the middle."""

import os
import sys
from pathlib import Path
from signal import SIGINT

import numpy as np
import pytest

from finetune.look.__main__ import main as look
from support.assays.small_run import write
from support.jobs import fine_tuning_job
from support.kept_runs import config
from support.launching import FLOAT32, bit_equal, end_of, lines, run, started, until
from support.rank_pool import RankPool

pytestmark = [pytest.mark.launch, pytest.mark.xdist_group("finetune")]

SHORT = ("schedule.total_tokens=3_500",)


def command(engine: str, *arguments: object) -> list[str]:
    launcher = [sys.executable, "-m", "accelerate.commands.launch", "--config_file", str(config(engine))]
    return [*launcher, "--num_processes", "2", *FLOAT32, "-m", "finetune", *map(str, arguments)]


@pytest.mark.parametrize(
    "engine",
    [
        # ZeRO-3 is launched over two nodes for pretraining, DDP and FSDP2 by test_readme.py; the other stages of ZeRO
        # differ from the third one in no word of a launch.
        pytest.param(each, marks=pytest.mark.prove)
        for each in ("ddp", "fsdp2", "zero1", "zero2", "zero3")
    ],
)
def test_it_runs_as_launched(tmp_path: Path, engine: str) -> None:
    done = run(command(engine, write(tmp_path), *SHORT))
    assert done.status == 0, done.output
    assert end_of(tmp_path / "run").step == 5
    said = done.output.splitlines()
    assert said.count(f"run directory {tmp_path / 'run'}") == 1  # rank 0 alone speaks
    assert any(line.startswith("task          state: multiclass; labels: ") for line in said)
    (progress,) = [line for line in said if line.startswith("step 5 of 5 | loss ")]
    assert "tokens/s" not in progress  # of cached features, no token is read
    assert "MFU" not in progress
    assert progress.endswith(" | 100 %")
    assert {line["attempt"] for line in lines(tmp_path / "run/attempts.jsonl")} == {1}


def test_what_a_look_writes_trains_on_two_processes(
    pool: RankPool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))  # without MMseqs2
    rng = np.random.default_rng(0)
    rows = [f"{''.join(rng.choice(list('ACDEFGHIKLMNPQRSTVWY'), 12))},{number % 11}" for number in range(1100)]
    (tmp_path / "peptides.csv").write_text("\n".join(["sequence,binding", *rows]))
    assert look([str(tmp_path / "peptides.csv"), "-o", "r.toml", "--no-timing"]) == 0
    short = ["schedule.passes=none", "schedule.total_tokens=1_500", "run.patience=none"]
    words = [str(tmp_path / "r.toml"), *short, f'run.directory="{tmp_path}/run"', f'data.store_dir="{tmp_path}/stores"']
    done = pool.run(2, config("ddp"), words, program=fine_tuning_job.__name__)
    assert done.status == 0, done.output
    assert end_of(tmp_path / "run").step >= 2


@pytest.mark.prove
def test_control_c_and_the_same_command_again(pool: RankPool, tmp_path: Path) -> None:
    words = command("ddp", write(tmp_path), "schedule.total_tokens=30_000")
    root, log = tmp_path / "run", tmp_path / "log"
    with started(words, log) as process:
        until(lambda: any(line["step"] >= 7 for line in lines(root / "metrics.jsonl")), log)
        os.killpg(process.pid, SIGINT)
        assert process.wait(60) == 1, log.read_text()  # the launcher's own status
    stopped = end_of(root).step
    assert f"stopped by SIGINT at step {stopped}; saved: " in log.read_text()
    assert 7 <= stopped < 36
    done = run(words)
    assert done.status == 0, done.output
    assert f"continuing {root} at step {stopped}" in done.output
    length = "schedule.total_tokens=30_000"
    whole = pool.run(2, config("ddp"), [write(tmp_path / "whole"), length], program=fine_tuning_job.__name__)
    assert whole.status == 0, whole.output
    assert bit_equal(end_of(root), end_of(tmp_path / "whole/run"))
