"""A save that a disk refuses: told and counted, trained past, and the end of the run only when it lasts."""

import errno
import io
import os
from collections.abc import Container
from contextlib import redirect_stderr
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from accelerate import Accelerator

import zymogen.trainer.checkpoint.saver
import zymogen.trainer.loop
from pretrain.__main__ import main
from support.assays.small_run import write
from support.checkpoint_run import (
    build,
    clock_of,
    full_disk,
    saves_of,
    train,
    trainer_at,
    written_at_once,
)
from support.jobs import fine_tuning_job
from support.launching import bit_equal, end_of, lines
from support.places import ROOT
from support.rank_pool import ENDED, PROGRAM, RankPool
from zymogen.processes.errors import CheckpointError, StorageError
from zymogen.trainer.checkpoint import saver
from zymogen.trainer.checkpoint.load import find, verify
from zymogen.trainer.engine.engine import Engine
from zymogen.trainer.engine.named_state import TorchState

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
        clock = mock.patch.object(saver, "monotonic", clock_of(LOOK_S))
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
