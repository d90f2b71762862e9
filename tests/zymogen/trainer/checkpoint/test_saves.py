"""A save that a disk refuses: told and counted, trained past, and the end of the run only when it lasts."""

import errno
import io
import itertools
import os
import shutil
from collections.abc import Container
from contextlib import redirect_stderr
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from accelerate import Accelerator

import pretrain.objective
import zymogen.trainer.checkpoint.saver
import zymogen.trainer.loop
from pretrain.__main__ import main
from pretrain.export.__main__ import main as export_main
from support.assays.small_run import write
from support.checkpoint_run import (
    build,
    clock_of,
    fill,
    full_disk,
    mount_small_disk,
    saves_of,
    train,
    trainer_at,
    written_at_once,
)
from support.forked import forked, status_of
from support.jobs import fine_tuning_job
from support.launching import bit_equal, end_of, lines
from support.places import ROOT
from support.rank_pool import ENDED, PROGRAM, RankPool
from zymogen.processes.errors import CheckpointError, StorageError
from zymogen.trainer.checkpoint import writer
from zymogen.trainer.checkpoint.load import find, verify
from zymogen.trainer.engine.engine import Engine
from zymogen.trainer.engine.named_state import TorchState
from zymogen.trainer.run.directory import RunDirectory
from zymogen.trainer.step import train_step

EACH_OF_SEVEN_STEPS = ("schedule.total_tokens=5_000", "run.checkpoint_every=1", "run.keep_checkpoints=20")
NO_SPACE = "No space left on device"
LOOK_S = 600.0
"""What the clock moves on by when it is looked at: at a failed save, and before a step while none is written."""


class Run:
    """A run of seven steps that saves at each."""

    def __init__(self, recipe: Path) -> None:
        self.recipe, self.root, self.said = recipe, recipe.parent / "run", ""

    def start(self, *more: str, failing: Container[int] = ()) -> int:
        """The exit status of the program; saves of these numbers fail, from 1, tries included."""
        clock = mock.patch.object(writer, "monotonic", clock_of(LOOK_S))
        with full_disk(failing), clock, written_at_once(), redirect_stderr(io.StringIO()) as said:
            status = main([str(self.recipe), *EACH_OF_SEVEN_STEPS, *more])
        self.said = said.getvalue()
        return status

    @property
    def steps(self) -> list[int]:
        """Steps of the checkpoints, oldest first; each is whole."""
        return [verify(path).manifest.step for path in find(self.root / "checkpoints")][::-1]

    @property
    def exits(self) -> list[str]:
        return [line["exit"] for line in lines(self.root / "attempts.jsonl") if "exit" in line]


@pytest.fixture(autouse=True, scope="module")
def _no_pause() -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(zymogen.trainer.checkpoint.saver, "_PAUSE_S", 0.0)
        yield


@pytest.fixture(scope="module")
def bumpy(recipe_in, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Steps 1 and 2, 4 and 5 are not saved; the last step, 7, is at the third try."""
    run = Run(recipe_in(tmp_path_factory.mktemp("bumpy")))
    assert run.start(failing={1, 2, 4, 5, 7, 8}) == 0
    return run


def test_a_failed_save_costs_only_itself(bumpy: Run) -> None:
    assert bumpy.steps == [3, 6, 7]
    assert bumpy.exits == ["finished"]
    assert (bumpy.root / "export/model.safetensors").exists()
    three, six = (verify(path).manifest for path in find(bumpy.root / "checkpoints")[:0:-1])
    assert (three.parent, six.parent) == (None, three.self_sha256)  # what was never written is nobody's parent
    assert not [path.name for path in (bumpy.root / "checkpoints").iterdir() if path.name.startswith(".")]


def test_a_failed_save_is_told_and_counted_and_a_success_ends_the_count(bumpy: Run) -> None:
    metrics = lines(bumpy.root / "metrics.jsonl")
    told = [(line["step"], line["failed_saves"], line["save_error"]) for line in metrics if "save_error" in line]
    on, none = "; training continues, the newest checkpoint is", "; training continues, there is no checkpoint yet"
    first, second = (
        f"; saves have failed for {time}, and the run ends if they do for 1 h (run.saves_may_fail_for)"
        for time in ("0:00", "10:00")
    )
    assert told == [
        (1, 1, f"step 1 was not saved: {NO_SPACE}{none}{first}"),
        (2, 2, f"step 2 was not saved: {NO_SPACE}{none}{second}"),
        (4, 3, f"step 4 was not saved: {NO_SPACE}{on} step-000000003{first}"),
        (5, 4, f"step 5 was not saved: {NO_SPACE}{on} step-000000003{second}"),
        (7, 5, f"step 7 was not saved: {NO_SPACE}; 2 more tries, 0 s apart"),
        (7, 6, f"step 7 was not saved: {NO_SPACE}; 1 more try, 0 s apart"),
    ]
    assert [line for _, _, line in told if f"save failed: {line}" not in bumpy.said] == []
    assert [line["failed_saves"] for line in metrics if "loss" in line] == [0, 0, 1, 2, 2, 3, 4]


@pytest.mark.slow
def test_a_failed_save_is_tried_again_before_the_next_one_is_due(recipe_in, tmp_path: Path) -> None:
    """After a sixth of the time that saves may fail: here at the second step after it."""
    run = Run(recipe_in(tmp_path))
    assert run.start("run.checkpoint_every=3", "run.saves_may_fail_for=1 h", failing={1}) == 0
    assert run.steps == [5, 6, 7]


@pytest.mark.slow
def test_saves_that_fail_for_too_long_or_the_last_one_end_the_run(bumpy: Run, recipe_in, tmp_path: Path) -> None:
    run = Run(recipe_in(tmp_path))
    words = ("run.keep_checkpoints=1", "run.saves_may_fail_for=20 min")
    assert run.start(*words, failing=range(3, 1000)) == os.EX_IOERR == 74
    assert run.steps == [2]  # nothing is removed for a checkpoint that never came
    (error,) = (line for line in run.said.splitlines() if line.startswith("error: "))
    assert error == (
        f"error: {run.root / 'checkpoints'}: the run ends, as saves have failed for 20:00 (run.saves_may_fail_for = "
        f"'20 min'): step 5 was not saved: {NO_SPACE}; the newest checkpoint is step-000000002; free space or mend the "
        "disk, and start again: the run continues from there"
    )
    assert "Traceback" not in run.said
    (of_rank,) = lines(run.root / "ranks/rank-00000.jsonl")
    assert (of_rank["class"], of_rank["phase"], of_rank["step"]) == ("storage", "checkpoint", 6)

    assert run.start(failing={5, 6, 7}) == 74  # steps 3 to 6 are saved, and 7 is tried three times
    assert run.steps == [2, 3, 4, 5, 6]
    assert "the run ends, as the last save has failed 3 times: step 7 was not saved" in run.said
    assert "the newest checkpoint is step-000000006" in run.said
    assert not (run.root / "export").exists()
    assert "validation" not in (run.root / "metrics.jsonl").read_text()

    assert run.start() == 0  # the same command, with room again
    assert run.exits == ["storage", "storage", "finished"]
    assert lines(run.root / "attempts.jsonl")[2]["cause"] == "continued: attempt 1 ended as storage"
    assert bit_equal(end_of(run.root), end_of(bumpy.root))
    assert end_of(run.root).chain == end_of(bumpy.root).chain


def test_what_ends_an_evaluation_costs_no_step(recipe_in, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_memory(*_: object) -> None:
        raise RuntimeError("out of memory")

    run = Run(recipe_in(tmp_path))
    monkeypatch.setattr(pretrain.objective, "evaluate", no_memory)
    assert run.start("run.evaluate_every=2") == 70
    (of_rank,) = lines(run.root / "ranks/rank-00000.jsonl")
    assert (of_rank["phase"], of_rank["step"], of_rank["message"]) == ("validate", 2, "out of memory")
    assert run.steps == [1, 2]


def test_a_process_that_was_replaced_ends_at_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It is no disk that is full, and trying again would not help."""
    model, optimizer = build()
    train(model, optimizer, 0, 1)
    state = TorchState(model, optimizer)
    assert saves_of(tmp_path, state, 2).save(trainer_at(1), final=True)
    train(model, optimizer, 1, 2)
    with pytest.raises(CheckpointError, match="attempt 2 wrote this step, and this is attempt 1") as caught:
        saves_of(tmp_path, state, 1).save(trainer_at(1), final=True)
    assert not isinstance(caught.value, StorageError)
    assert capsys.readouterr().err == ""


@pytest.mark.slow
def test_a_disk_that_is_full_for_a_while(recipe_in, tmp_path: Path) -> None:
    """A real one: 3 MB that belong to the run alone; what it left, but for tensors, is looked at afterwards."""
    recipe, out, root = recipe_in(tmp_path), tmp_path / "left", tmp_path / "run"
    root.mkdir()

    numbers = itertools.count(1)

    def step(*arguments: Any, **how: Any) -> Any:
        number = next(numbers)
        if number == 3:
            fill(root)
            os.rename(root / "metrics.jsonl", root / "kept")
            os.mkdir(root / "metrics.jsonl")  # the last page of the file would take a few lines more
        elif number == 5:
            (root / "filler").unlink()
            os.rmdir(root / "metrics.jsonl")
            os.rename(root / "kept", root / "metrics.jsonl")
        return train_step(*arguments, **how)

    def work() -> None:
        mount_small_disk(root, "3m")
        zymogen.trainer.loop.train_step = step  # in this process alone
        with written_at_once():
            status = main([str(recipe), *EACH_OF_SEVEN_STEPS, "run.keep_checkpoints=1"])
        shutil.copytree(root, out, ignore=shutil.ignore_patterns("*.safetensors"))
        (out / "status").write_text(str(status))

    end = status_of(forked(work))
    if end == 77:
        pytest.skip("no right to mount a tmpfs here")
    assert end == 0
    assert (out / "status").read_text() == "0"
    assert [path.name for path in (out / "checkpoints").iterdir()] == ["step-000000007"]
    steps = [line for line in lines(out / "metrics.jsonl") if "loss" in line]
    assert [line["step"] for line in steps] == [1, 2, 5, 6, 7]  # the disk took no line of 3 and 4
    assert [line["failed_saves"] for line in steps] == [0, 0, 1, 2, 2]
    assert [line["exit"] for line in lines(out / "attempts.jsonl") if "exit" in line] == ["finished"]


@pytest.mark.slow
def test_a_full_disk_is_one_line_at_a_start_and_ends_no_run_at_its_first_step(
    recipe_in, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """What run.json says is written at a start, and once more after the first step."""
    recipe, root = recipe_in(tmp_path), tmp_path / "run"
    root.mkdir()
    longer = [str(recipe), *EACH_OF_SEVEN_STEPS, "--allow-schedule-change"]

    def main_of(*words: str) -> tuple[int, list[str]]:
        status = main(list(words))
        return status, capfd.readouterr().err.splitlines()

    def work() -> None:
        mount_small_disk(root, "24m")  # for as many checkpoints as are kept
        assert main_of(str(recipe), "schedule.total_tokens=1")[0] == 0
        fill(root)
        status, said = main_of(*longer)
        assert (status, [line for line in said if "Traceback" in line]) == (74, [])
        assert [line for line in said if line.startswith("error: ")] == [
            f"error: {root}/run.json: the disk is full, or a quota or size limit reached ({NO_SPACE}); free space "
            "there, and start again"
        ]
        assert [line["exit"] for line in lines(root / "attempts.jsonl") if "exit" in line] == ["finished", "storage"]

        numbers = itertools.count(1)

        def step(*arguments: Any, **how: Any) -> Any:
            number = next(numbers)
            if number == 1:
                fill(root)
            elif number == 3:
                assert RunDirectory(root).read().recipe["schedule"]["total_tokens"] == 1
                (root / "filler").unlink()
            return train_step(*arguments, **how)

        (root / "filler").unlink()
        zymogen.trainer.loop.train_step = step  # in this process alone
        status, said = main_of(*longer)
        assert status == 0, said
        told = f"{root}/run.json: the disk is full, or a quota or size limit reached ({NO_SPACE}); tried again after"
        assert sum(line.startswith(told) for line in said) == 1
        assert RunDirectory(root).read().recipe["schedule"]["total_tokens"] == 5_000

    end = status_of(forked(work))
    if end == 77:
        pytest.skip("no right to mount a tmpfs here")
    assert end == 0, capfd.readouterr().err


@pytest.mark.parametrize("room", [pytest.param(0, marks=pytest.mark.slow), 16 << 10])  # none; for all but the weights
def test_no_room_for_the_last_export(room: int, recipe_in, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    recipe, root = recipe_in(tmp_path), tmp_path / "run"
    root.mkdir()
    evaluate = pretrain.objective.evaluate

    def then_full(*arguments: Any, **how: Any) -> Any:
        fill(root, room)
        return evaluate(*arguments, **how)

    def work() -> None:
        mount_small_disk(root, "3m")
        pretrain.objective.evaluate = then_full  # in this process alone
        words = ("schedule.total_tokens=900", "run.keep_checkpoints=1")
        status, said = main([str(recipe), *words]), capfd.readouterr().err
        assert (status, "Traceback" in said) == (74, False), said
        assert (
            f"error: {root}/export: the disk is full, or a quota or size limit reached ({NO_SPACE}); the run is "
            "trained and its newest checkpoint is whole, but it is not exported; free space there, and export it: "
            f"python -m pretrain.export {root}\n"
        ) in said
        assert [line["exit"] for line in lines(root / "attempts.jsonl") if "exit" in line] == ["storage"]
        assert not list(root.glob(".export*")) + list(root.glob("export*"))
        (root / "filler").unlink()
        export_main([str(root)])
        assert (root / "export/model.safetensors").exists()

    end = status_of(forked(work))
    if end == 77:
        pytest.skip("no right to mount a tmpfs here")
    assert end == 0, capfd.readouterr().err


class Tracker:
    """Keeps what it is sent, until its disk is full."""

    def __init__(self, name: str, room: int) -> None:
        self.name, self.room, self.got = name, room, list[int]()

    def log(self, values: dict[str, float], step: int) -> None:
        if len(self.got) == self.room:
            raise OSError(errno.ENOSPC, NO_SPACE)
        self.got.append(step)


def test_a_tracker_that_fails_is_told_of_once_and_the_others_go_on(capsys: pytest.CaptureFixture[str]) -> None:
    engine, full, roomy = Engine(Accelerator(cpu=True)), Tracker("full", 2), Tracker("roomy", 9)
    engine.accelerator.trackers = [full, roomy]
    for step in range(1, 6):
        engine.track({"loss": 3.0}, step)
    assert (full.got, roomy.got) == ([1, 2], [1, 2, 3, 4, 5])
    (said,) = capsys.readouterr().err.splitlines()
    assert said.startswith("run.trackers: full gets nothing from step 3 on, and training continues: [Errno 28]")


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")  # of tensorboard's thread
def test_a_tracker_without_room_ends_no_run(recipe_in, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run, numbers = Run(recipe_in(tmp_path)), itertools.count(1)

    def step(*arguments: Any, **how: Any) -> Any:
        if next(numbers) == 3:
            (events,) = (run.root / "zymogen").glob("events.*")
            events.unlink()
            events.symlink_to("/dev/full")
        return train_step(*arguments, **how)

    monkeypatch.setattr(zymogen.trainer.loop, "train_step", step)
    assert run.start('run.trackers=["tensorboard"]', "run.log_every=1") == 0, run.said
    look, *told = [line for line in run.said.splitlines() if "tensorboard" in line]
    assert look == f"tensorboard   tensorboard --logdir {run.root}"
    assert len(told) == 1
    assert told[0].startswith(
        "run.trackers: tensorboard gets nothing from step 3 on, and training continues: [Errno 28]"
    )
    assert run.exits == ["finished"]
    assert run.steps == [1, 2, 3, 4, 5, 6, 7]


@pytest.mark.slow
@pytest.mark.launch
@pytest.mark.xdist_group("engines")
def test_no_rank_is_alone_with_a_disk_that_is_full_at_the_first_step(pool: RankPool, recipe_in, tmp_path: Path) -> None:
    config, run = ROOT / "accelerate_configs/ddp.yaml", Run(recipe_in(tmp_path))
    words = [run.recipe, *EACH_OF_SEVEN_STEPS, 'run.trackers=["tensorboard"]']
    ended = pool.run(2, config, words, fault="full_at_the_first_step")
    assert ended.statuses == (0, 0), ended.output
    assert ended.output.count(f"{run.root}/run.json: the disk is full") == 1
    assert run.exits == ["finished"]


@pytest.mark.launch
@pytest.mark.xdist_group("engines")
@pytest.mark.parametrize(
    ("engine", "program"),
    [
        ("ddp", PROGRAM),
        *(pytest.param(engine, PROGRAM, marks=pytest.mark.slow) for engine in ("fsdp2", "zero3")),
        pytest.param("ddp", fine_tuning_job.__name__, marks=pytest.mark.slow),
    ],
)
def test_every_rank_learns_that_a_save_failed(
    engine: str, program: str, pool: RankPool, recipe_in, tmp_path: Path
) -> None:
    """And for how long saves have failed: by the clock of rank 0, as for the other no time passes."""
    run = Run((recipe_in if program == PROGRAM else write)(tmp_path))
    words = [run.recipe, *EACH_OF_SEVEN_STEPS]
    config = ROOT / f"accelerate_configs/{engine}.yaml"
    ended = pool.run(2, config, words, fault="full_disk_twice", program=program)
    # A rank that saw a peer fail ends with 1, or is ended by the launcher while it still closes its connections.
    assert ended.statuses in ((74, 71), (74, ENDED)), ended.output
    assert run.steps == [1, 3]  # after the second save it went on in step, and when the sixth had failed it ended
    (error,) = ended.errors()
    # A validation that selects waits for its save, so that the clock is looked at before the next step, too.
    time = "1:00:00" if program == PROGRAM else "1:30:00"
    assert f"saves have failed for {time} (run.saves_may_fail_for = '1 h'): step 6 was not saved" in error
    assert "the newest checkpoint is step-000000003" in error
    assert run.exits == ["storage"]
    (other,) = lines(run.root / "ranks/rank-00001.jsonl")
    assert (other["class"], other["step"], other["phase"]) == ("peer", 7, "checkpoint")
    assert error.removeprefix("error: ") in other["message"]
