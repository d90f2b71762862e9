"""A scheduler's signals to two ranks: in order where that is possible, and soon where it is not."""

import os
import time
from collections.abc import Callable
from pathlib import Path
from signal import SIGCONT, SIGKILL, SIGSTOP, SIGTERM, SIGUSR1
from typing import Any

import pytest

from support.chaos import campaign
from support.chaos.campaign import EVERY, Campaign
from support.forked import status_of
from support.launching import lines, until
from zymogen.trainer import attempt
from zymogen.trainer.checkpoint.load import find, verify
from zymogen.trainer.checkpoint.saver import CheckpointSaver
from zymogen.trainer.recovery import watchdog
from zymogen.trainer.run.directory import RunDirectory

_TOKENS = 24_000  # 33 steps
pytestmark = [pytest.mark.launch, pytest.mark.xdist_group("engines")]


class Scheduled:
    """A run of two ranks that gets signals, and ends where one ends that got none."""

    def __init__(self, folder: Path, recipe: Path, reference: Campaign) -> None:
        self.root = folder / "runs/scheduled"
        self.log = self.root.with_suffix(".log")
        self._campaign, self._reference = Campaign(folder / "runs", recipe, tokens=_TOKENS), reference

    def start(self) -> list[int]:
        return self._campaign.start(self.root, "ddp", 2)

    def steps(self) -> int:
        return max((line["step"] for line in lines(self.root / "metrics.jsonl")), default=0)

    def at(self, step: int) -> None:
        until(lambda: self.steps() >= step, self.log)

    def ends(self) -> list[str]:
        return [line["exit"] for line in lines(self.root / "attempts.jsonl") if "exit" in line]

    def newest(self) -> int:
        return verify(find(self.root / "checkpoints")[0]).manifest.step

    def assert_ends_alike(self) -> None:
        self._campaign.await_end(self.root, self.start())
        assert verify(find(self.root / "checkpoints")[0]).manifest.files == self._reference.reference("ddp", 2).files


@pytest.fixture(scope="module")
def reference(recipe_in, tmp_path_factory: pytest.TempPathFactory) -> Campaign:
    folder = tmp_path_factory.mktemp("reference")
    return Campaign(folder / "runs", recipe_in(folder), tokens=_TOKENS)


@pytest.fixture
def scheduled(recipe_in, tmp_path: Path, reference: Campaign) -> Callable[..., Scheduled]:
    def make(setting: str = "") -> Scheduled:
        recipe = recipe_in(tmp_path)
        recipe.write_text(recipe.read_text().replace("[run]\n", f"[run]\n{setting}\n", 1))
        return Scheduled(tmp_path, recipe, reference)

    return make


def one(pids: list[int]) -> None:
    os.kill(pids[1], SIGTERM)


def every(pids: list[int]) -> None:
    for pid in pids:
        os.kill(pid, SIGTERM)


def twice(pids: list[int]) -> None:
    every(pids)
    time.sleep(0.01)
    every(pids)


@pytest.mark.parametrize(
    ("sends", "in_a_save"),
    [
        (twice, True),
        pytest.param(one, False, marks=pytest.mark.slow),
        *(pytest.param(*how, marks=pytest.mark.prove) for how in [(every, False), (one, True)]),
    ],
)
def test_sigterm_ends_all_at_one_step_which_is_saved(scheduled: Callable, sends: Callable, in_a_save: bool) -> None:
    run = scheduled()
    pids = run.start()
    run.at(2 * EVERY + 1)
    if in_a_save:
        until(lambda: any(run.root.glob("checkpoints/.tmp-*")), run.log)
    sends(pids)
    assert [status_of(pid) for pid in pids] == [75, 75], run.log.read_text()
    assert run.ends() == [f"stopped by SIGTERM at step {run.newest()}"]
    assert run.newest() == run.steps()
    assert not list(run.root.glob("ranks/*"))  # no rank failed
    run.assert_ends_alike()
    assert "the last start" not in run.log.read_text()


@pytest.mark.slow
def test_a_save_that_does_not_fit_is_not_begun(scheduled: Callable, monkeypatch: pytest.MonkeyPatch) -> None:
    """By what rank 0 has measured, and by the grace that is left since rank 1 alone got the signal."""
    monkeypatch.setattr(CheckpointSaver, "usual_s", property(lambda self: 50.0 if self._engine.is_main else 0.0))
    run = scheduled("grace_s = 90")
    pids = run.start()
    run.at(2 * EVERY + 1)
    until(lambda: run.steps() % EVERY == 1, run.log)
    began = time.monotonic()
    one(pids)
    assert [status_of(pid) for pid in pids] == [75, 75], run.log.read_text()
    took = time.monotonic() - began
    assert run.newest() < run.steps()
    assert run.ends() == [f"stopped by SIGTERM at step {run.steps()}"]
    said = run.log.read_text()
    stopped = f"stopped by SIGTERM at step {run.steps()}; not saved, as a save takes up to 1e+02 s, and "
    left = int(said.split(stopped)[1].split(" s were left of the 72 s for it ")[0])
    assert 72 - took - 1 <= left <= 72
    assert f"the run continues from {run.root}/checkpoints/step-{run.newest():09d}: to continue: " in said
    monkeypatch.undo()
    run.assert_ends_alike()


@pytest.mark.parametrize("rank", [1, pytest.param(0, marks=pytest.mark.slow)])
def test_sigusr1_to_any_rank_saves_and_trains_on(
    scheduled: Callable, rank: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = [option for option in campaign.OPTIONS if "checkpoint_every" not in option]
    monkeypatch.setattr(campaign, "OPTIONS", (*options, "run.checkpoint_every=1000"))
    run = scheduled()
    pids = run.start()
    run.at(EVERY)
    os.kill(pids[rank], SIGUSR1)
    assert [status_of(pid) for pid in pids] == [0, 0], run.log.read_text()
    asked, last = (line["step"] for line in lines(run.root / "metrics.jsonl") if "checkpoint_s" in line)
    assert EVERY < asked < last == run.steps()
    assert "SIGUSR1: the step that is being taken is saved" in run.log.read_text()
    assert run.ends() == ["finished"]
    assert lines(run.root / "attempts.jsonl")[0]["pid"] == pids[0]


@pytest.mark.parametrize(
    ("grace", "floor_s"),
    [("grace_s = 4", 60.0), pytest.param("", 5.0, marks=pytest.mark.slow)],
)
def test_a_rank_whose_peer_is_stopped_ends_before_it_is_killed(
    scheduled: Callable, grace: str, floor_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watchdog, "SILENT_S", floor_s)
    run = scheduled(grace)
    pids = run.start()
    run.at(2 * EVERY + 1)
    os.kill(pids[1], SIGSTOP)
    one([pids[1], pids[0]])
    began = time.monotonic()
    assert status_of(pids[0]) == 75, run.log.read_text()
    assert 2.5 < time.monotonic() - began < (6 if grace else 20)  # 95 % of the grace, on a machine that is busy
    os.kill(pids[1], SIGKILL)
    os.kill(pids[1], SIGCONT)
    assert status_of(pids[1]) == -SIGKILL
    said = run.log.read_text()
    assert "was blocked (phase " in said
    assert "Current thread" in said
    assert run.ends()[0].startswith("stopped by SIGTERM at step ")
    run.assert_ends_alike()


@pytest.mark.slow
def test_a_rank_that_waits_for_a_build_ends_when_it_is_asked_to(
    scheduled: Callable, monkeypatch: pytest.MonkeyPatch
) -> None:
    def builds(self: RunDirectory, _: object) -> None:
        (self.root / "builds").touch()
        time.sleep(60)

    def train(recipe: Any, open_job: Callable, engine: Any, **how: Any) -> Any:
        def opened(recipe: Any, engine: Any) -> Any:
            job = open_job(recipe, engine)
            (run.root / f"opened-{engine.rank}").touch()
            return job

        return trains(recipe, opened, engine, **how)

    trains = attempt.train
    monkeypatch.setattr(attempt, "train", train)
    monkeypatch.setattr(RunDirectory, "describe_corpus", builds)
    monkeypatch.setattr(watchdog, "SILENT_S", 5.0)
    run = scheduled()
    pids = run.start()
    until((run.root / "builds").exists, run.log)
    until((run.root / "opened-1").exists, run.log)  # while it still opens its corpus, it stops at once, saying nothing
    time.sleep(0.5)
    one(pids)
    began = time.monotonic()
    assert status_of(pids[1]) == 75, run.log.read_text()
    assert time.monotonic() - began < 20
    os.kill(pids[0], SIGKILL)
    assert status_of(pids[0]) == -SIGKILL
    assert (
        "stopped by SIGTERM before the first step; not saved, as rank 1 was blocked (phase start)"
        in run.log.read_text()
    )
