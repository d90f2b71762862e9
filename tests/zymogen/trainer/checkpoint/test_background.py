"""Saves that are written while training continues: what they hold, and what a disk that does not answer costs."""

import io
import itertools
import os
import shutil
import signal
import sys
import threading
from collections.abc import Sequence
from contextlib import redirect_stderr
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import zymogen.trainer.loop
from pretrain.__main__ import main
from support.checkpoint_run import assert_same, build, everything, plan_of, restore, saves_of, shares, train, trainer_at
from support.forked import forked, status_of
from support.launching import lines
from support.places import ROOT
from support.rank_pool import RankPool
from zymogen.processes.errors import StorageError
from zymogen.trainer.checkpoint import saver
from zymogen.trainer.checkpoint.commit import commit
from zymogen.trainer.checkpoint.load import find, verify
from zymogen.trainer.checkpoint.retention import sweep
from zymogen.trainer.checkpoint.writer import BackgroundWrite, StagedState, StagingBuffer, stored_as
from zymogen.trainer.engine.named_state import TorchState
from zymogen.trainer.step import train_step

EACH_STEP = ("run.checkpoint_every=1", "run.keep_checkpoints=50", "run.log_every=1")


def test_a_save_holds_what_was_there_when_it_began(tmp_path: Path) -> None:
    model, optimizer = build()
    train(model, optimizer, 0, 3)
    state, staging, begin = TorchState(model, optimizer), StagingBuffer(), threading.Event()
    before = everything(model, optimizer)
    for step in (3, 4):  # in the same buffers
        staged = staging.stage(state)
        plan = plan_of(tmp_path, step)
        begin.clear()
        write = BackgroundWrite(lambda _, plan=plan, staged=staged: (begin.wait(20), commit(plan, staged)), 0)
        before = everything(model, optimizer)
        train(model, optimizer, step, step + 1)
        begin.set()
        assert write.wait(20)
        assert write.error is None
        other, moments = build(seed=9)
        restore(verify(plan.published), TorchState(other, moments))
        assert_same(everything(other, moments), before)


@pytest.mark.skipif(sys.platform != "linux", reason="a thread has turns of its own on Linux")
@pytest.mark.parametrize(("num_bytes", "nice"), [(1 << 24, 0), ((1 << 24) + 1, 15)])
def test_a_large_save_asks_for_few_turns_beside_training(num_bytes: int, nice: int) -> None:
    before = os.getpriority(os.PRIO_PROCESS, 0)
    write = BackgroundWrite(lambda _: os.getpriority(os.PRIO_PROCESS, threading.get_native_id()), num_bytes)
    assert write.wait(20)
    assert (write.result, os.getpriority(os.PRIO_PROCESS, 0)) == (nice or before, before)


def test_the_memory_of_a_save_is_there_before_the_first_one(tmp_path: Path) -> None:
    model, optimizer = build()
    train(model, optimizer, 0, 1)
    state, staging = TorchState(model, optimizer), StagingBuffer()
    staging.make_ready(state.pieces())
    kept = staging._flat.data_ptr()
    staged = staging.stage(state)
    assert staging._flat.data_ptr() == kept
    assert sum(map(len, staged.pieces.values())) == 18


class Allocations(TorchDispatchMode):
    """Bytes of every new storage of at least some bytes."""

    def __init__(self, at_least: int) -> None:
        super().__init__()
        self.at_least, self.sizes = at_least, []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if func in (torch.ops.aten.empty.memory_format, torch.ops.aten.zeros.default) and out.nbytes >= self.at_least:
            self.sizes.append(out.nbytes)
        return out


@pytest.mark.parametrize("bits", [None, 1, 2])
def test_a_save_has_one_buffer_of_exactly_its_bytes(bits: int | None) -> None:
    """Whatever part of the state a rank stores, and however often it does."""
    model, optimizer = build()
    train(model, optimizer, 0, 1)
    state, staging = TorchState(model, optimizer), StagingBuffer()
    pieces = [piece for index, piece in enumerate(state.pieces()) if bits is None or index % 2 == bits % 2]
    state.pieces = lambda: pieces  # type: ignore[method-assign]
    with Allocations(at_least=16) as made:
        staging.make_ready(pieces)
        staged = [staging.stage(state) for _ in range(3)][-1]
    assert made.sizes == [staged.num_bytes]
    values = [piece.live for of_part in staged.pieces.values() for piece in of_part.values()]
    assert {value.untyped_storage().data_ptr() for value in values} == {staging._flat.data_ptr()}
    assert staging._flat.untyped_storage().nbytes() == staged.num_bytes == 4 * sum(p.stop - p.start for p in pieces)
    spans = sorted((value.data_ptr(), value.data_ptr() + value.nbytes) for value in values)
    assert all(stop <= start for (_, stop), (start, _) in pairwise(spans))
    for piece in pieces:
        part, stored = stored_as(piece)
        assert torch.equal(staged.pieces[part][stored].live.flatten(), piece.live.reshape(-1))


class Blocked:
    """A disk that answers no flush of a step's files until it is told to; that save alone is not waited for."""

    def __init__(self, step: int, monkeypatch: pytest.MonkeyPatch) -> None:
        self.answers, self.met, self.steps = threading.Event(), False, 0
        monkeypatch.setattr(saver, "_PATIENCE_S", 60.0)
        fsync, name = os.fsync, f"step-{step:09d}"

        def waiting(handle: int) -> None:
            if f".tmp-{name}" in os.readlink(f"/proc/self/fd/{handle}"):
                self.met = True
                self.answers.wait(60)
            fsync(handle)

        def taken(*arguments: Any, **how: Any) -> Any:
            self.steps += 1
            if self.steps == step + 1:
                saver._PATIENCE_S = 0.05
            self.before(self.steps)
            return train_step(*arguments, **how)

        monkeypatch.setattr(os, "fsync", waiting)
        monkeypatch.setattr(zymogen.trainer.loop, "train_step", taken)

    def before(self, step: int) -> None:
        """Something to do before a step is taken."""


def test_what_is_due_while_a_save_is_being_written_is_skipped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    of_run, answers, fsync = saves_of(tmp_path, TorchState(*build())), threading.Event(), os.fsync
    monkeypatch.setattr(os, "fsync", lambda handle: (answers.wait(20), fsync(handle)))
    monkeypatch.setattr(saver, "_PATIENCE_S", 0.05)
    assert [of_run.save(trainer_at(step)) for step in (1, 2, 3)] == [True, False, False]
    assert of_run.skipped == 2
    said = "save skipped: the checkpoint of step 1 is still being written; training continues"
    assert capsys.readouterr().err.splitlines() == [said]
    answers.set()
    assert of_run.save(trainer_at(4), final=True)
    assert [verify(path).manifest.step for path in find(tmp_path / "checkpoints")] == [4, 1]
    assert (of_run.skipped, of_run.failed) == (2, 0)


@pytest.mark.slow
def test_steps_continue_while_the_disk_does_not_answer(
    recipe_in, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It answers after the fifth step; what was due meanwhile is skipped, and told once."""
    disk = Blocked(2, monkeypatch)

    def answer(step: int) -> None:
        if step == 6:
            disk.answers.set()
            saver._PATIENCE_S = 60.0
            for thread in threading.enumerate():
                if thread.name == "checkpoint":
                    thread.join(60)
            assert (tmp_path / "run/checkpoints/step-000000002").exists()

    disk.before = answer
    with redirect_stderr(io.StringIO()) as said:
        assert main([str(recipe_in(tmp_path)), "schedule.total_tokens=5_000", *EACH_STEP]) == 0
    root = tmp_path / "run"
    assert disk.met
    assert [verify(path).manifest.step for path in find(root / "checkpoints")][::-1] == [1, 2, 6, 7]
    skipped = [line for line in said.getvalue().splitlines() if line.startswith("save skipped")]
    assert skipped == ["save skipped: the checkpoint of step 2 is still being written; training continues"]
    metrics = lines(root / "metrics.jsonl")
    assert [line["skipped_saves"] for line in metrics if "loss" in line] == [0, 0, 0, 1, 2, 3, 3]
    assert [line["step"] for line in metrics if "checkpoint_s" in line] == [1, 2, 6, 7]
    assert all(0 <= line["stall_s"] <= line["checkpoint_s"] for line in metrics if "checkpoint_s" in line)


@pytest.mark.slow
def test_a_disk_that_never_answers_ends_the_run(recipe_in, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After the time that saves may fail for; nothing waits for the thread that hangs."""
    disk = Blocked(2, monkeypatch)
    words = ("schedule.total_tokens=200_000", "run.saves_may_fail_for=1 s", *EACH_STEP)
    with redirect_stderr(io.StringIO()) as said:
        assert main([str(recipe_in(tmp_path)), *words]) == 74
    disk.answers.set()
    (error,) = (line for line in said.getvalue().splitlines() if line.startswith("error: "))
    assert error == (
        f"error: {tmp_path / 'run/checkpoints'}: the run ends, as the save of step 2 has not ended in 0:01 "
        "(run.saves_may_fail_for = '1 s'); the newest checkpoint is step-000000001; free space or mend the disk, and "
        "start again: the run continues from there"
    )
    assert [line["exit"] for line in lines(tmp_path / "run/attempts.jsonl") if "exit" in line] == ["storage"]


def test_rank_0_publishes_what_all_ranks_have_written(tmp_path: Path) -> None:
    model, optimizer = build()
    train(model, optimizer, 0, 2)
    parts, plan = shares(TorchState(model, optimizer), 3), plan_of(tmp_path, 2, ranks=3)
    first = BackgroundWrite(lambda is_given_up: commit(plan, parts[0], is_given_up=is_given_up), 0)
    assert commit(plan, parts[2], rank=2) is None
    assert not first.wait(0.2)
    assert commit(plan, parts[1], rank=1) is None
    assert first.wait(20)
    found = verify(plan.published)
    assert first.result == found.manifest
    files = {entry.path for entry in found.manifest.files}
    data = {f"{part}/0000{rank}.safetensors" for part in ("model", "optimizer") for rank in range(3)}
    assert files == data | {"model/index.json", "optimizer/index.json", "trainer.json"}
    assert os.listdir(tmp_path) == ["step-000000002"]
    other, moments = build(seed=9)
    restore(found, TorchState(other, moments))
    assert_same(everything(other, moments), everything(model, optimizer))


def test_a_save_whose_other_part_never_comes_is_given_up(tmp_path: Path) -> None:
    model, optimizer = build()
    train(model, optimizer, 0, 2)
    parts = shares(TorchState(model, optimizer), 2)
    first = BackgroundWrite(
        lambda is_given_up: commit(plan_of(tmp_path, 2, ranks=2), parts[0], is_given_up=is_given_up), 0
    )
    assert not first.wait(0.2)
    first.give_up()
    assert first.wait(20)
    assert isinstance(first.error, StorageError)
    assert first.error.reason == "step 2 was not saved: it was given up"
    assert os.listdir(tmp_path) == []
    commit(plan_of(tmp_path, 2, ranks=2), parts[1], rank=1)  # late: its folder is swept by the next save
    again = plan_of(tmp_path, 3, ranks=2, number=1)
    commit(again, parts[1], rank=1)
    commit(again, parts[0])
    assert os.listdir(tmp_path) == ["step-000000003"]


@pytest.mark.slow
def test_a_kill_of_either_rank_before_each_change_of_the_disk(tmp_path: Path) -> None:
    """In the first, second and third save: what was there loads, and the same save can be made again."""
    model, optimizer = build()
    base, ends = tmp_path / "base", []
    base.mkdir()
    for step in (1, 2, 3):
        train(model, optimizer, step - 1, step)
        parts = shares(TorchState(model, optimizer), 2)
        before = list(range(step - 1, 0, -1))

        for victim in (0, 1):
            for fatal in itertools.count(1):
                run = tmp_path / f"run-{step}-{victim}-{fatal}"
                shutil.copytree(base, run)
                ended, other = save_with_a_kill(run, parts, step, attempt=1, victim=victim, fatal=fatal)
                ends.append((victim, ended))
                assert (ended, other) == (0, 0) or (ended == -signal.SIGKILL and other == victim)
                found = [verify(path).manifest.step for path in find(run)]
                assert found in ([step, *before], [step, *before][1:])
                assert found[0:1] == [step] or ended
                assert sweep(run) == [] or ended
                if not ended:
                    break
            assert save_with_a_kill(run, parts, step, attempt=2, victim=0, fatal=1000) == [
                0,
                0,
            ]  # again, and for what is there already
            other_model, moments = build(seed=9)
            restore(verify(run / f"step-{step:09d}"), TorchState(other_model, moments))
            assert_same(everything(other_model, moments), everything(model, optimizer))
        shutil.rmtree(base)
        run.rename(base)
    kills = [victim for victim, ended in ends if ended]
    assert kills.count(0) > 3 * 15
    assert kills.count(1) > 3 * 6


def save_with_a_kill(
    run: Path, parts: Sequence[StagedState], step: int, *, attempt: int, victim: int, fatal: int
) -> list[int]:
    """How both ranks of a save end, the victim first, which is killed before its call of this number."""
    gone = run.with_suffix(".gone")

    def work(rank: int) -> None:
        if rank == victim:
            die_before(fatal)
        commit(plan_of(run, step, ranks=2, attempt=attempt), parts[rank], rank=rank, is_given_up=gone.exists)

    pids = [forked(lambda rank=rank: work(rank)) for rank in (0, 1)]
    ended = status_of(pids[victim])
    if ended:
        gone.touch()
    return [ended, status_of(pids[1 - victim])]


def die_before(fatal: int) -> None:
    """Kill this process before its `fatal`-th change of the disk."""
    count = itertools.count(1)

    def watched(real: Any) -> Any:
        def call(*arguments: Any, **how: Any) -> Any:
            if next(count) == fatal:
                os.kill(os.getpid(), signal.SIGKILL)
            return real(*arguments, **how)

        return call

    for name in ("mkdir", "fsync", "rename", "unlink", "rmdir"):
        setattr(os, name, watched(getattr(os, name)))


@pytest.mark.launch
@pytest.mark.xdist_group("engines")
@pytest.mark.parametrize("engine", ["ddp", pytest.param("zero3", marks=pytest.mark.slow)])
def test_a_disk_that_another_rank_finds_full_costs_one_save(
    engine: str, pool: RankPool, recipe_in, tmp_path: Path
) -> None:
    words = [recipe_in(tmp_path), "schedule.total_tokens=5_000", *EACH_STEP]
    ended = pool.run(2, ROOT / f"accelerate_configs/{engine}.yaml", words, fault="full_on_rank_1")
    assert ended.statuses == (0, 0), ended.output
    root = tmp_path / "run"
    assert [verify(path).manifest.step for path in find(root / "checkpoints")][::-1] == [1, 3, 4, 5, 6, 7]
    (failed,) = (line for line in lines(root / "metrics.jsonl") if "save_error" in line)
    assert failed["step"] == 2
    assert failed["save_error"].startswith("step 2 was not saved: rank 1: No space left on device; training continues")
    assert [path.name for path in (root / "checkpoints").iterdir() if path.name.startswith(".")] == []


@pytest.mark.launch
@pytest.mark.xdist_group("engines")
def test_what_failed_is_told_and_not_what_followed_from_it(pool: RankPool, recipe_in, tmp_path: Path) -> None:
    words = [recipe_in(tmp_path), "schedule.total_tokens=5_000", *EACH_STEP]
    ended = pool.run(2, ROOT / "accelerate_configs/ddp.yaml", words, fault="full_on_rank_0")
    assert ended.statuses == (0, 0), ended.output
    (failed,) = (line for line in lines(tmp_path / "run/metrics.jsonl") if "save_error" in line)
    assert failed["save_error"].startswith("step 2 was not saved: No space left on device; training continues")
