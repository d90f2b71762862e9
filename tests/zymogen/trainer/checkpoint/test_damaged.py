"""Damage of the checkpoint that a start restores: all ranks use the one before it, and end as without damage."""

import os
import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest

from pretrain.__main__ import main
from support.checkpoint_run import flip
from support.kept_runs import config
from support.launching import lines
from support.rank_pool import RankPool
from zymogen.trainer.checkpoint.load import find, verify
from zymogen.trainer.run.attempts import AttemptRecords, attempts
from zymogen.trainer.run.directory import RunDirectory
from zymogen.trainer.run.reader import RunReader

WORDS = (
    "run.checkpoint_every=2",
    "run.keep_checkpoints=4",
    "run.log_every=1",
    "run.validation_sequences=4",
    "schedule.final_lr=1.0",
)


def damage(run: Path, file: str, newest: int = 1) -> list[Path]:
    """Change one bit of the newest checkpoints, which their JSON and sizes do not show."""
    damaged = find(run / "checkpoints")[:newest]
    for path in damaged:
        flip(path / file, (path / file).stat().st_size - 5)
    return damaged


@pytest.mark.slow
def test_a_start_uses_the_checkpoint_before_a_damaged_one(
    recipe_in, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Two are damaged, the later of them in its moments, which are read last."""
    recipe, run = str(recipe_in(tmp_path)), tmp_path / "run"
    half = [recipe, *WORDS, "--allow-schedule-change", "schedule.total_tokens=4_500"]
    whole = [*half[:-1], "schedule.total_tokens=6_500"]
    assert main(half) == 0
    shutil.copytree(run, tmp_path / "other")
    assert main([*whole, f"run.directory={tmp_path / 'other'}"]) == 0
    first, second = damage(run, "optimizer/00000.safetensors", 2)
    third = find(run / "checkpoints")[2]
    capsys.readouterr()
    assert main(whole) == 0
    said = capsys.readouterr().err
    for path in (first, second):
        assert f"checkpoint rejected: {path.name}: optimizer/00000.safetensors: sha256" in said
    assert os.listdir(run / "checkpoints/.quarantine") == [f"{second.name}-hash"], "the last one"
    base = int(third.name.removeprefix("step-"))
    assert [start.base_step for start in attempts(AttemptRecords.read(RunDirectory(run)))] == [0, base]
    assert [start.base_step for start in RunReader(run).attempts] == [0, base]
    ours, theirs = (verify(find(folder / "checkpoints")[0]).manifest for folder in (run, tmp_path / "other"))
    assert ours.files == theirs.files
    steps = [line["step"] for line in lines(run / "metrics.jsonl") if line["attempt"] == 2 and "loss" in line]
    assert steps[0] == base + 1


def test_a_run_whose_checkpoints_are_all_damaged_is_refused(
    recipe_in, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [str(recipe_in(tmp_path)), *WORDS, "schedule.total_tokens=2_000"]
    assert main(words) == 0
    count = len(damage(tmp_path / "run", "model/00000.safetensors", 9))
    longer = [*words[:-1], "schedule.total_tokens=3_000", "--allow-schedule-change"]
    for _ in range(2):
        assert main(longer) == 70
        assert "no checkpoint verifies" in capsys.readouterr().err
    assert len(os.listdir(tmp_path / "run/checkpoints/.quarantine")) == count
    assert find(tmp_path / "run/checkpoints") == []


@pytest.mark.launch
@pytest.mark.xdist_group("engines")
@pytest.mark.parametrize(("engine", "damaged"), [("ddp", "model/00001"), ("fsdp2", "optimizer/00001")])
def test_two_ranks_agree_on_the_checkpoint_before_a_damaged_one(
    pool: RankPool, recipe_in, tmp_path: Path, engine: str, damaged: str
) -> None:
    """Under DDP each rank reads half of what both need, under FSDP2 its own part: one of them finds the damage."""
    recipe = str(recipe_in(tmp_path))

    def trained(folder: str, *words: str) -> Sequence[str]:
        done = pool.run(2, config(engine), [recipe, *WORDS, f"run.directory={tmp_path / folder}", *words])
        assert done.statuses == (0, 0), done.output
        return done.outputs

    trained("run", "schedule.total_tokens=4_500")
    shutil.copytree(tmp_path / "run", tmp_path / "other")
    newest, before, *_ = find(tmp_path / "run/checkpoints")
    damage(tmp_path / "run", f"{damaged}.safetensors")
    longer = ("schedule.total_tokens=6_500", "--allow-schedule-change")
    outputs = trained("run", *longer)
    trained("other", *longer)
    assert sum(output.count(f"checkpoint rejected: {newest.name}: {damaged}") for output in outputs) == 1
    assert os.listdir(tmp_path / "run/checkpoints/.quarantine") == [f"{newest.name}-hash"]
    assert attempts(AttemptRecords.read(RunDirectory(tmp_path / "run")))[-1].base_step == int(
        before.name.removeprefix("step-")
    )
    ours, theirs = (verify(find(tmp_path / name / "checkpoints")[0]).manifest for name in ("run", "other"))
    assert ours.files == theirs.files
