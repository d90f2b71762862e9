"""A disk that fails, or is too small: nothing of a failed commit is used again, and a run has room before it begins."""

import errno
import io
import itertools
import os
import shutil
from contextlib import redirect_stderr
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
from torch import nn

import zymogen.trainer.loop
from pretrain.__main__ import main
from support.assays.small_run import write
from support.checkpoint_run import build, clock_of, fill, mount_small_disk, save, train, written_at_once
from support.forked import NO_FILTER, RefusedFlushes, forked, refuse, status_of
from support.jobs import fine_tuning_job
from support.launching import lines
from support.places import ROOT
from support.rank_pool import ENDED, PROGRAM, RankPool
from zymogen.processes.errors import StorageError
from zymogen.trainer.checkpoint import saver
from zymogen.trainer.checkpoint.free_space import require_room
from zymogen.trainer.checkpoint.load import find, verify
from zymogen.trainer.engine.named_state import TorchState
from zymogen.trainer.optimizer.kinds import ParameterGroup, build_optimizer, num_stored
from zymogen.trainer.optimizer.settings import OptimizerSettings
from zymogen.trainer.step import train_step

FINE_TUNING = fine_tuning_job.__name__
ENDLESS = 1_000_000_000
"""Checkpoints that no disk has room for."""


def child(work: Any) -> None:
    """Do it in a copy of this process, which keeps disks and filters of its own."""
    end = status_of(forked(work))
    if end == NO_FILTER:  # or no right to mount
        pytest.skip("no right to mount a tmpfs, or to filter system calls, here")
    assert end == 0


def test_a_file_whose_fsync_failed_is_never_flushed_again(two: Path) -> None:
    """The kernel itself refuses each fsync of a commit in turn; the next try succeeds, with files of its own."""

    def work() -> None:
        model, optimizer = build()
        train(model, optimizer, 0, 1)
        flushes = RefusedFlushes()

        def commit() -> None:
            save(two, TorchState(model, optimizer), 5)

        for fatal in range(1, 11):
            (error,) = flushes.during(commit, fatal)
            assert isinstance(error, StorageError)
            assert error.reason == "step 5 was not saved: Input/output error"
            assert len(flushes.held) == fatal
            assert sorted(os.listdir(two)) == ["step-000000003", "step-000000004"]
            assert flushes.during(commit, 0) == []
            verify(two / "step-000000005")
            shutil.rmtree(two / "step-000000005")
        assert flushes.during(commit, 11) == []

    child(work)


def test_a_step_that_exists_already_is_made_durable(two: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who wrote it may have been killed between the rename and the fsync of the folder."""
    model, optimizer = build()
    train(model, optimizer, 0, 1)
    before = verify(save(two, TorchState(model, optimizer), 5))
    flushed: list[str] = []
    fsync = os.fsync

    def watched(handle: int) -> None:
        flushed.append(os.readlink(f"/proc/self/fd/{handle}"))
        fsync(handle)

    monkeypatch.setattr(os, "fsync", watched)
    assert verify(save(two, TorchState(model, optimizer), 5)) == before
    assert flushed[-1] == str(two)


@pytest.mark.parametrize(
    ("job", "disk"),
    [
        ("pretrain", "Input/output error"),
        pytest.param("pretrain", "No space left on device", marks=pytest.mark.slow),
        pytest.param("finetune", "Input/output error", marks=pytest.mark.slow),
        pytest.param("finetune", "No space left on device", marks=pytest.mark.slow),
    ],
)
def test_a_disk_that_fails_is_trained_past_and_ends_the_run_in_the_end(
    job: str, disk: str, recipe_in, tmp_path: Path
) -> None:
    """From its third step on the disk takes nothing; saves may fail for 10 minutes, and a step takes as long."""
    recipe = (recipe_in if job == "pretrain" else write)(tmp_path)
    program = main if job == "pretrain" else fine_tuning_job.main
    root, numbers = tmp_path / "run", itertools.count(1)
    is_full = disk.startswith("No space")

    def step(*arguments: Any, **how: Any) -> Any:
        if next(numbers) == 3:
            if is_full:
                fill(root)
            elif not refuse("fsync", errno.EIO):
                os._exit(NO_FILTER)
        return train_step(*arguments, **how)

    def work() -> None:
        if is_full:
            root.mkdir()
            mount_small_disk(root, "8m")
        zymogen.trainer.loop.train_step = step  # in this process alone
        words = [str(recipe), "run.checkpoint_every=1", "run.saves_may_fail_for=10 min"]
        clock = mock.patch.object(saver, "monotonic", clock_of(600))
        with clock, written_at_once(), redirect_stderr(io.StringIO()) as heard:
            status = program(words)
        said = heard.getvalue()
        assert status == 74, said
        first, second = (line for line in said.splitlines() if line.startswith("save failed: "))
        assert first == (
            f"save failed: step 3 was not saved: {disk}; training continues, the newest checkpoint is step-000000002; "
            "saves have failed for 0:00, and the run ends if they do for 10 min (run.saves_may_fail_for)"
        )
        assert second == f"save failed: step 4 was not saved: {disk}"
        assert [line for line in said.splitlines() if line.startswith("error: ")] == [
            f"error: {root / 'checkpoints'}: the run ends, as saves have failed for 10:00 (run.saves_may_fail_for = "
            f"'10 min'): step 4 was not saved: {disk}; the newest checkpoint is step-000000002; free space or mend the "
            "disk, and start again: the run continues from there"
        ]
        assert "Traceback" not in said
        assert [verify(path).manifest.step for path in find(root / "checkpoints")] == [2, 1]
        if not is_full:  # else the disk took no line
            assert [line["step"] for line in lines(root / "metrics.jsonl") if "loss" in line] == [1, 2, 3, 4, 5]
            assert [line["exit"] for line in lines(root / "attempts.jsonl") if "exit" in line] == ["storage"]

    child(work)


def test_room_is_counted_for_what_is_kept_and_is_not_there_yet(tmp_path: Path) -> None:
    """With tenths of what is free, as others write to the disk meanwhile."""
    found = os.statvfs(tmp_path)
    free = found.f_bavail * found.f_frsize
    checkpoints = tmp_path / "not yet" / "checkpoints"
    require_room(checkpoints, kept=2, checkpoint_bytes=int(0.2 * free))
    with pytest.raises(StorageError, match=r"each of 2 that stay, the one that is being written and 1 in q"):
        require_room(checkpoints, kept=2, checkpoint_bytes=int(0.3 * free))
    (checkpoints / ".quarantine/step-000000009-hash").mkdir(parents=True)
    require_room(checkpoints, kept=2, checkpoint_bytes=int(0.3 * free))
    with pytest.raises(StorageError, match=r"the one that is being written and 0 in quarantine"):
        require_room(checkpoints, kept=2, checkpoint_bytes=int(0.4 * free))
    for step, size in ((1, 0.4), (2, 0.8), (3, 0.8)):
        (checkpoints / f"step-{step:09}").mkdir(parents=True)
        require_room(checkpoints, kept=2, checkpoint_bytes=int(size * free))
    with pytest.raises(StorageError, match=r"3 are there; free space there, lower run\.keep_checkpoints, or"):
        require_room(checkpoints, kept=2, checkpoint_bytes=int(1.1 * free))
    require_room(Path("/proc/checkpoints"), kept=2, checkpoint_bytes=1 << 60)  # says that it has no blocks at all


@pytest.mark.parametrize("name", ["adamw", "muon"])
def test_the_size_of_a_checkpoint_is_known_before_its_moments_exist(name: str) -> None:
    matrix, bias = nn.Parameter(torch.randn(4, 6)), nn.Parameter(torch.randn(5))
    groups: list[ParameterGroup] = [
        {"name": "matrices", "params": [matrix], "weight_decay": 0.0},
        {"name": "no_decay", "params": [bias], "weight_decay": 0.0},
    ]
    if name == "muon":
        groups[0]["blocks"] = 1
    settings = OptimizerSettings(name=name)
    known, optimizer = num_stored(groups, settings), build_optimizer(groups, settings)
    matrix.grad, bias.grad = torch.ones(4, 6), torch.ones(5)
    optimizer.step()
    moments = [each for cell in optimizer.state.values() for key, each in cell.items() if key != "step"]
    assert known == sum(each.numel() for each in (matrix, bias, *moments))
    assert known == (5 + (1 if name == "muon" else 2) * 24 + 24 + 2 * 5)


@pytest.mark.slow
def test_a_first_start_without_room_leaves_nothing(recipe_in, tmp_path: Path) -> None:
    with redirect_stderr(io.StringIO()) as said:
        assert main([str(recipe_in(tmp_path)), f"run.keep_checkpoints={ENDLESS}"]) == 74
    (error,) = (line for line in said.getvalue().splitlines() if line.startswith("error: "))
    assert f" for each of {ENDLESS:,} that stay, the one that is being written and 1 in quarantine; 0 are" in error
    assert not (tmp_path / "run").exists()


@pytest.mark.launch
@pytest.mark.xdist_group("engines")
@pytest.mark.parametrize("program", [PROGRAM, FINE_TUNING])
def test_no_rank_begins_where_there_is_no_room(program: str, pool: RankPool, recipe_in, tmp_path: Path) -> None:
    recipe = (recipe_in if program == PROGRAM else write)(tmp_path)
    words = [recipe, f"run.keep_checkpoints={ENDLESS}"]
    ended = pool.run(2, ROOT / "accelerate_configs/ddp.yaml", words, program=program)
    assert ended.statuses in ((74, 71), (74, ENDED)), ended.output
    (error,) = ended.errors()
    kept = ENDLESS + (program == FINE_TUNING)  # which keeps its best one, too
    assert f" for each of {kept:,} that stay, the one that is being written and 1 in quarantine; 0 are there; " in error
    assert not (tmp_path / "run").exists()


MANIFEST = {"created": "2026-11-27T12:00:00Z", "versions": {}, "files": (), "parent": None}
MANIFEST |= {"fingerprints": dict.fromkeys(("identity", "schedule", "corpus", "split"), "0"), "digest": "0" * 64}
MANIFEST |= {"world_size": 1, "engine": "single", "precision": "no"}
