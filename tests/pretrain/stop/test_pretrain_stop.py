"""Ctrl-C and SIGTERM: the run ends in order, the same command continues, and nothing shows at the end."""

import errno
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from signal import SIGINT, SIGTERM, Signals

import pytest

import pretrain.export.export as ship
import pretrain.job as job
import pretrain.objective as objective
import zymogen.trainer.loop
from pretrain.__main__ import main
from support.checkpoint_run import written_at_once
from support.forked import in_process
from support.kept_runs import STEPS_12, Trained
from support.launching import DDP, bit_equal, end_of, environment, lines
from support.places import ROOT
from support.rank_pool import RankPool
from zymogen.processes import signals
from zymogen.trainer.checkpoint import saver
from zymogen.trainer.checkpoint.commit import SavePlan
from zymogen.trainer.engine.engine import Engine
from zymogen.trainer.run.directory import RunDirectory


class Run:
    """A run of twelve steps, one every time it is started."""

    def __init__(self, recipe: Path, trained: Trained, capsys: pytest.CaptureFixture) -> None:
        self.root, self.words = recipe.parent / "run", [str(recipe), *STEPS_12]
        self._trained, self._capsys = trained, capsys

    def start(self, *more: str) -> int:
        return main([*self.words, *more])

    def last_line(self) -> str:
        return self._capsys.readouterr().err.splitlines()[-1]

    def attempts(self) -> list[str]:
        return [line.get("exit", line.get("cause")) for line in lines(self.root / "attempts.jsonl")]

    def saved(self) -> list[int]:
        return sorted(int(path.name[5:]) for path in (self.root / "checkpoints").glob("step-*"))

    def assert_goes_on(self, processes: int = 1) -> None:
        """The same command ends where a run ends that nobody stopped."""
        assert self.start() == 0
        reference = self._trained("ddp" if processes > 1 else "single", processes, length=STEPS_12).end
        end = end_of(self.root)
        assert (end.step, end.chain, end.tokens_seen) == (reference.step, reference.chain, reference.tokens_seen)
        assert bit_equal(end, reference)
        assert (self.root / "export/model.safetensors").exists()
        left = [path.name for path in (*self.root.iterdir(), *(self.root / "checkpoints").iterdir())]
        assert [name for name in left if name.startswith(".")] == []


@pytest.fixture
def run(recipe_in, trained: Trained, tmp_path: Path, capsys: pytest.CaptureFixture) -> Run:
    return Run(recipe_in(tmp_path), trained, capsys)


@pytest.fixture
def when(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Has this process sent a signal when a function is called for the n-th time, before or after its work."""

    def arrange(holder: object, name: str, by: Signals, at: int = 1, *, after: bool = False) -> None:
        function, calls = getattr(holder, name), [0]

        def signalling(*arguments: object, **how: object) -> object:
            calls[0] += 1
            if calls[0] == at and not after:
                os.kill(os.getpid(), by)
            result = function(*arguments, **how)
            if calls[0] == at and after:
                os.kill(os.getpid(), by)
            return result

        monkeypatch.setattr(holder, name, signalling)

    return arrange


@pytest.mark.parametrize(("by", "status"), [(SIGINT, 130), pytest.param(SIGTERM, 75, marks=pytest.mark.slow)])
def test_the_step_is_finished_and_saved(run: Run, when: Callable[..., None], by: Signals, status: int) -> None:
    when(zymogen.trainer.loop, "train_step", by, at=5)
    handlers = [signal.getsignal(each) for each in (SIGINT, SIGTERM)]
    assert run.start() == status
    assert [signal.getsignal(each) for each in (SIGINT, SIGTERM)] == handlers
    assert run.saved() == [5]
    said = run.last_line()
    saved = run.root / "checkpoints/step-000000005"
    assert said.startswith(f"stopped by {by.name} at step 5; saved: {saved}; to continue: ")
    assert run.attempts() == ["fresh", f"stopped by {by.name} at step 5"]
    run.assert_goes_on()
    assert run.attempts()[2:] == [f"continued: attempt 1 was stopped by {by.name} at step 5", "finished"]
    assert lines(run.root / "attempts.jsonl")[2]["base_step"] == 5
    assert not (run.root / "ranks").exists()


PHASES: dict[str, tuple[object, str, dict, int | None]] = {
    # what is called when the signal comes, and the step that is saved; None: nothing was trained
    "build": (job, "open_on_every_rank", {}, None),
    "start": (Engine, "prepare", {}, None),
    "first step": (Engine, "warm_up", {}, None),
    "waiting for data": (job.Loader, "__next__", {"at": 4}, 3),
    "save": (saver, "commit", {"at": 1}, 10),
    "after a save": (saver, "commit", {"at": 1, "after": True}, 10),
    "validation": (Engine, "raise_if_interrupted", {"at": 2}, 12),
    "end of the validation": (objective, "evaluate", {"after": True}, 12),
    "export": (ship.transformers_io, "save", {}, 12),
    "end of the export": (ship.transformers_io, "save", {"after": True}, 12),
}


SHOWN = ("waiting for data", "save")
REST = [pytest.param(phase, marks=pytest.mark.slow) for phase in PHASES if phase not in SHOWN]


@pytest.mark.parametrize("phase", [*SHOWN, *REST])
def test_in_every_phase(run: Run, when: Callable[..., None], phase: str, monkeypatch: pytest.MonkeyPatch) -> None:
    holder, name, how, step = PHASES[phase]
    with monkeypatch.context(), written_at_once():
        when(holder, name, SIGINT, **how)
        assert run.start() == 130
    if step is None:
        assert run.last_line().startswith("stopped by SIGINT before the first step; to begin again or continue: ")
        assert not run.root.exists()
    else:
        assert run.last_line().startswith(f"stopped by SIGINT at step {step}; saved: ")
        assert run.saved()[-1] == step
    run.assert_goes_on()


def test_while_the_directory_is_claimed(run: Run, when: Callable[..., None]) -> None:
    when(RunDirectory, "describe_recipe", SIGINT)
    assert run.start() == 130
    assert run.last_line().startswith("stopped by SIGINT; to begin again or continue: ")
    assert not run.root.exists()


def test_a_folder_that_was_there_stays(run: Run, when: Callable[..., None], tmp_path: Path) -> None:
    when(Engine, "warm_up", SIGTERM)
    (tmp_path / "run").mkdir()
    assert run.start() == 75
    assert list(run.root.iterdir()) == []
    when(Engine, "warm_up", SIGTERM)
    deep = tmp_path / "new/deep/run"
    assert run.start(f"run.directory={deep}") == 75
    assert not (tmp_path / "new").exists()


@pytest.mark.slow
@pytest.mark.parametrize(("save_s", "saved"), [pytest.param(0.1, 5, marks=pytest.mark.slow), (100.0, 4)])
def test_the_last_save_is_begun_if_it_fits(
    run: Run, when: Callable[..., None], monkeypatch: pytest.MonkeyPatch, save_s: float, saved: int
) -> None:
    monkeypatch.setattr(saver.CheckpointSaver, "usual_s", save_s)
    when(zymogen.trainer.loop, "train_step", SIGTERM, at=5)
    with written_at_once():
        assert run.start("run.checkpoint_every=2", "run.grace_s=100") == 75
    assert run.saved()[-1] == saved
    newest = run.root / f"checkpoints/step-{saved:09d}"
    why = "not saved, as a save takes up to 2e+02 s, and 80 s were left of the 80 s for it (run.grace_s = 100)"
    said = f"saved: {newest}" if saved == 5 else f"{why}; the run continues from {newest}"
    assert run.last_line().startswith(f"stopped by SIGTERM at step 5; {said}")
    assert run.attempts() == ["fresh", "stopped by SIGTERM at step 5"]
    run.assert_goes_on()


@pytest.mark.slow
@pytest.mark.parametrize("at", [4, pytest.param(5, marks=pytest.mark.slow)])
def test_a_save_that_does_not_end_gets_what_is_left(
    run: Run, when: Callable[..., None], monkeypatch: pytest.MonkeyPatch, at: int
) -> None:
    """The one that is being written when the signal comes, and the last one."""
    commit, may_end = saver.commit, threading.Event()

    def blocked(plan: SavePlan, *arguments: object, **how: object) -> object:
        if plan.trainer.step == at:
            may_end.wait(60)
            raise OSError(errno.EIO, "blocked")
        return commit(plan, *arguments, **how)

    with monkeypatch.context() as patch:
        patch.setattr(saver, "commit", blocked)
        patch.setattr(saver.CheckpointSaver, "usual_s", 0.0)  # however slow the disk is, the last one fits
        when(zymogen.trainer.loop, "train_step", SIGTERM, at=5)
        began = time.monotonic()
        assert run.start("run.checkpoint_every=2", "run.grace_s=2") == 75
        assert time.monotonic() - began < 20
    may_end.set()
    said = run.last_line()
    assert said.startswith(f"stopped by SIGTERM at step 5; not saved, as the save of step {at} had not ended, and 0 s ")
    assert run.saved()[-1] == {4: 2, 5: 4}[at]
    run.assert_goes_on()


@pytest.mark.slow
def test_a_second_signal_ends_at_once(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also while the main thread computes and hears nothing; signals within a moment are one."""
    monkeypatch.setattr(signals, "_SAME_S", 0.4)
    train_step, began = zymogen.trainer.loop.train_step, time.monotonic()

    def endless(*arguments: object, **how: object) -> object:
        pid = os.getpid()
        if os.fork() == 0:
            os.closerange(3, 1024)  # among them the run's lock, which this process must not hold after the run's
            for wait_s in (0.0, 0.1, 0.7):
                time.sleep(wait_s)
                os.kill(pid, SIGTERM)
            os._exit(0)
        signal.pthread_sigmask(signal.SIG_BLOCK, [SIGINT])
        while time.monotonic() < began + 60:  # it never comes to look whether to stop
            time.sleep(60)
        return train_step(*arguments, **how)

    def started() -> None:
        zymogen.trainer.loop.train_step = endless
        run.start()

    assert in_process(started) == 75
    assert 0.7 < time.monotonic() - began < 30
    assert run.saved() == []
    run.assert_goes_on()


@pytest.mark.launch
@pytest.mark.xdist_group("engines")
@pytest.mark.parametrize(("fault", "by", "status"), [("interrupted", SIGINT, 130), ("terminated", SIGTERM, 75)])
def test_one_rank_stops_all(pool: RankPool, run: Run, trained: Trained, fault: str, by: Signals, status: int) -> None:
    done = pool.run(3, DDP, run.words, fault=fault)
    assert done.statuses == (status,) * 3, done.output
    assert run.saved() == [5]
    (said,) = (line for line in done.outputs[0].splitlines() if line.startswith("stopped by "))
    assert said.startswith(f"stopped by {by.name} at step 5; saved: ")
    assert "stopped by" not in done.outputs[1] + done.outputs[2]
    assert run.attempts() == ["fresh", f"stopped by {by.name} at step 5"]
    assert pool.run(3, DDP, run.words).status == 0
    assert bit_equal(end_of(run.root), trained("ddp", 3, length=STEPS_12).end)


IN_AN_IMPORT = """
import os, runpy, signal, sys

class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == "accelerate.hooks":
            sys.meta_path.remove(self)
            os.kill(os.getpid(), signal.SIGTERM)

sys.meta_path.insert(0, Finder())
runpy.run_module("pretrain", run_name="__main__", alter_sys=True)
"""


@pytest.mark.slow
def test_a_signal_in_an_import_ends_with_its_own_status(recipe_in, tmp_path: Path) -> None:
    """Modules that were being imported are there in part, so that nothing may need them for the last words."""
    words = [sys.executable, "-c", IN_AN_IMPORT, str(recipe_in(tmp_path))]
    done = subprocess.run(words, cwd=ROOT, env=environment(), capture_output=True, text=True, timeout=100)
    assert done.returncode == 75, done.stderr
    assert "stopped by SIGTERM" in done.stderr
    assert "; to begin again or continue: " in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "run").exists()
