"""Ranks that wait for one that will never come end soon, and say which one it is."""

import errno
import os
import re
import signal
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import pretrain.loop
from pretrain.checkpoint import find, verify
from pretrain.recovery import watchdog
from pretrain.run import records
from pretrain.run.directory import RunDirectory
from support.chaos.campaign import Campaign
from support.forked import status_of
from support.launching import lines, until

WINDOW_S = 3.0


@pytest.mark.launch
@pytest.mark.xdist_group("engines")
@pytest.mark.parametrize("stopped", [1, pytest.param(0, marks=pytest.mark.prove)])
def test_a_rank_that_is_stopped_is_named_and_the_run_continues(
    stopped: int, recipe_in, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watchdog, "FLOOR_S", WINDOW_S)  # the ranks are forked from here
    campaign = Campaign(tmp_path / "runs", recipe_in(tmp_path), tokens=60_000)
    reference = campaign.reference("ddp", 2)
    run = tmp_path / "runs/stopped"
    log = run.with_suffix(".log")
    pids = campaign.start(run, "ddp", 2)
    until(lambda: any(line["step"] > 10 for line in lines(run / "metrics.jsonl")), log)
    os.kill(pids[stopped], signal.SIGSTOP)
    began = time.monotonic()
    assert status_of(pids[1 - stopped]) == 71, log.read_text()
    assert WINDOW_S < time.monotonic() - began < WINDOW_S + 20
    os.kill(pids[stopped], signal.SIGKILL)
    assert status_of(pids[stopped]) == -signal.SIGKILL
    (record,) = lines(run / f"ranks/rank-{1 - stopped:05d}.jsonl")
    assert (record["class"], record["error"]) == ("peer", "Hang")
    phase = r"\(phase (start|load|train|checkpoint)\)"
    seen = rf"rank {stopped} was last seen after step \d+ {phase} and gives no sign of life"
    assert re.match(seen, record["message"]), record["message"]
    said = log.read_text()
    assert f"error: rank {1 - stopped} waited in vain: rank {stopped} was last seen after step" in said
    assert "Current thread" in said
    campaign.await_end(run, campaign.start(run, "ddp", 2))
    assert (
        f"rank {1 - stopped}: Hang: rank {stopped} was last seen after step" in log.read_text()
    )  # what the next start says
    assert verify(find(run / "checkpoints")[0]).manifest.files == reference.files
    assert not list(run.glob("ranks/*.alive")) or stopped


def test_signs_of_life_bring_back_no_folder_of_a_start_that_failed(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path / "run")
    run.root.mkdir()
    signs = run.rank_file(1).with_suffix(".alive")
    with watchdog.watched(run, 1, 2, 1, lambda: {"step": 0, "phase": "start"}):
        while not signs.exists():
            time.sleep(0.01)
        assert run.remove()  # by rank 0
        run.root.rmdir()
        time.sleep(2 * watchdog._LOOK_S)
        assert not run.root.exists()
    assert not run.root.exists()


@pytest.mark.launch
@pytest.mark.xdist_group("engines")
def test_a_rank_shows_that_it_lives_until_its_error_is_written(
    recipe_in, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file keeps the folder of ranks, which another rank that ends just then removes if it is empty."""
    append = records.append

    def observed(path: Path, record: dict[str, Any]) -> None:
        append(path, {**record, "lives": path.with_suffix(".alive").exists()})

    def fails(*arguments: Any, **how: Any) -> None:
        raise RuntimeError("a step that fails")

    monkeypatch.setattr(records, "append", observed)  # the ranks are forked from here
    monkeypatch.setattr(pretrain.loop, "train_step", fails)
    campaign = Campaign(tmp_path / "runs", recipe_in(tmp_path), tokens=60_000)
    run = tmp_path / "runs/failed"
    assert [status_of(pid) for pid in campaign.start(run, "ddp", 2)] == [70, 70]
    for rank in (0, 1):
        (error,) = lines(run / f"ranks/rank-{rank:05d}.jsonl")
        assert (error["message"], error["lives"]) == ("a step that fails", True)
    assert not list(run.glob("ranks/*.alive"))


def test_a_rank_that_comes_after_a_start_failed_leaves_nothing(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path / "folder/run")
    with watchdog.watched(run, 1, 2, 1, lambda: {"step": 0, "phase": "start"}):
        assert run.rank_file(1).parent.is_dir()
    assert not run.root.parent.exists()


@pytest.mark.slow
def test_a_start_is_removed_beside_ranks_that_still_write(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path)
    folder = run.rank_file(1).parent
    folder.mkdir()
    is_over = threading.Event()

    def write() -> None:
        while not is_over.is_set():
            with suppress(OSError):
                (folder / str(time.monotonic_ns())).touch()

    other = threading.Thread(target=write)
    other.start()
    try:
        for _ in range(2_000):
            assert run.remove()
            assert not folder.exists()
            folder.mkdir()
    finally:
        is_over.set()
        other.join()


class Ranks:
    """Three ranks, seen by the first; time passes when it is told to."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now, self.run = 1000.0, RunDirectory(folder)
        monkeypatch.setattr(watchdog.time, "monotonic", lambda: self.now)
        self.stands: dict[int, tuple[int, str]] = dict.fromkeys(range(3), (0, "start"))
        self.watchdog: Any = watchdog._Watchdog(self.run, 0, 3, 7, self.position)
        self.watchdog.file(0).parent.mkdir()
        self.beats = 0

    def position(self) -> dict[str, object]:
        return dict(zip(("step", "phase"), self.stands[0], strict=True))

    def after(self, seconds: float, silent: int | None = None) -> str | None:
        """What the first rank finds after so many seconds in which nobody moves; `silent` gives no sign."""
        reason = None
        while seconds > 0:
            self.now, seconds, self.beats = self.now + 0.5, seconds - 0.5, self.beats + 1
            for rank in (1, 2):
                if rank != silent:
                    step, phase = self.stands[rank]
                    with suppress(OSError):
                        self.watchdog.file(rank).write_text(f"7 {self.beats} {step} {phase}")
            if self.watchdog.look():
                reason = self.watchdog._reason()
        return reason

    def all_at(self, step: int, phase: str = "train") -> None:
        self.stands = dict.fromkeys(range(3), (step, phase))


@pytest.fixture
def ranks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Ranks:
    return Ranks(tmp_path, monkeypatch)


def test_nothing_is_judged_before_training_begins(ranks: Ranks) -> None:
    assert ranks.after(70) is None
    ranks.all_at(1)
    assert ranks.after(70) is None  # nor before a step was timed: it may be compiled


def test_steps_that_end_are_progress_however_long_they_take(ranks: Ranks) -> None:
    for step in range(1, 6):
        ranks.all_at(step)
        assert ranks.after(4) is None
    assert ranks.after(20 * 4 - 10) is None
    ranks.stands[2] = (4, "train")
    found = ranks.after(60)
    assert found is not None
    assert found.startswith(
        "rank 2 was last seen after step 4 (phase train), no rank after an earlier one, and none has "
    )


def test_the_floor_holds_for_short_steps(ranks: Ranks) -> None:
    for step in range(1, 6):
        ranks.all_at(step)
        assert ranks.after(0.5) is None
    assert ranks.after(29) is None
    assert ranks.after(2) is not None


def test_a_rank_that_saves_or_validates_may_take_its_time(ranks: Ranks) -> None:
    for step in range(1, 4):
        ranks.all_at(step)
        ranks.after(1)
    ranks.stands[1] = (3, "validate")
    assert ranks.after(100) is None
    found = ranks.after(40, silent=1)
    assert found is not None
    assert found.startswith("rank 1 was last seen after step 3 (phase validate) and gives no sign of life: its process")


def test_a_process_that_stood_still_itself_begins_anew(ranks: Ranks) -> None:
    for step in range(1, 4):
        ranks.all_at(step)
        ranks.after(1)
    ranks.now += 3600
    assert ranks.after(29) is None


@pytest.mark.parametrize("phase", ["validate", "train"])
def test_ranks_that_cannot_write_name_nobody(ranks: Ranks, monkeypatch: pytest.MonkeyPatch, phase: str) -> None:
    """All signs stay as they were while the directory is read-only; what is silent after that is named."""
    for step in range(1, 4):
        ranks.all_at(step)
        ranks.after(1)
    ranks.all_at(3, phase)
    ranks.after(1)

    def refused(path: Path, text: str) -> int:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(path))

    with monkeypatch.context() as patch:
        patch.setattr(Path, "write_text", refused)
        assert ranks.after(31) is None
        assert ranks.after(3600) is None
    assert ranks.after(29, silent=1) is None
    found = ranks.after(3, silent=1)
    assert found is not None
    assert found.startswith(f"rank 1 was last seen after step 3 (phase {phase}) and gives no sign of life: its process")


def test_a_rank_that_has_ended_is_not_waited_for(ranks: Ranks) -> None:
    ranks.all_at(1, "export")
    ranks.after(1)
    ranks.watchdog.file(1).unlink()
    ranks.stands[0] = (1, "validate")
    assert ranks.after(70, silent=1) is None
