"""`python -m pretrain.inspect attempts`: what the starts of a real run ended by, and the status of the last one."""

import fcntl
import itertools
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import zymogen.trainer.loop
from pretrain.__main__ import main as train
from pretrain.inspect import attempts
from pretrain.inspect.__main__ import main
from support.forked import forked, in_process, status_of
from support.inputs.written_runs import WrittenStarts
from support.kept_runs import STEPS_12
from support.places import ROOT
from zymogen.trainer.recovery.restart_limit import SAME
from zymogen.trainer.run import lock
from zymogen.trainer.run.lock import LOCK, RunLock, is_held
from zymogen.trainer.run.run_json import FORMAT


class Looked:
    """The run directory of real starts, and what the command prints of it."""

    def __init__(self, recipe: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        self.root, self.words = recipe.parent / "run", [str(recipe), *STEPS_12, "run.checkpoint_every=2"]
        self._monkeypatch, self._capsys = monkeypatch, capsys

    def start(self, at_step_4: Callable[[], None], *more: str) -> int:
        """One start in this process; `at_step_4` is done in its fourth step."""
        train_step, steps = zymogen.trainer.loop.train_step, itertools.count(1)

        def faulty(*arguments: Any, **how: Any) -> Any:
            if next(steps) == 4:
                at_step_4()
            return train_step(*arguments, **how)

        with self._monkeypatch.context() as patch:
            patch.setattr(zymogen.trainer.loop, "train_step", faulty)
            return train([*self.words, *more])

    def said(self, *words: str) -> tuple[int, list[str]]:
        """Exit status and lines, without the time of day and durations."""
        self._capsys.readouterr()
        status = main(["attempts", str(self.root), *words])
        out = re.sub(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d", "DAY", self._capsys.readouterr().out)
        return status, re.sub(r"0:\d\d:\d\d", "TIME", out).splitlines()


@pytest.fixture
def looked(recipe_in, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Looked:
    return Looked(recipe_in(tmp_path), monkeypatch, capsys)


def fail() -> None:
    raise RuntimeError("no kernel\nof this kind")


@pytest.mark.slow
def test_every_start_of_a_run_is_shown_and_the_last_one_gives_the_status(looked: Looked, tmp_path: Path) -> None:
    assert main(["attempts", str(looked.root), "--last"]) == 78  # there is no run yet

    def killed() -> None:
        while not any(looked.root.glob("checkpoints/step-*")):  # it is written beside the third step
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGKILL)

    assert in_process(lambda: looked.start(killed)) == -signal.SIGKILL
    status, said = looked.said("--last")
    assert (status, said[3]) == (75, "ended        killed")
    assert said[-2:] == [
        "first cause  it was killed, or its machine went away",
        "what to do   start again: the same command continues",
    ]

    assert looked.start(fail) == 70  # steps 3 to 5; the checkpoint is of step 4
    status, said = looked.said("--last")
    assert (status, said) == (
        70,
        [
            f"attempt 2 of {looked.root}",
            "steps        2 to 5, 1 process",
            "began        DAY UTC, took TIME",
            "ended        error",
            "class        error (70): any other exception",
            "what failed  one rank: its process, its device, or the program",
            f"first cause  rank 0: RuntimeError: no kernel; its traceback is in {looked.root}/ranks/rank-00000.jsonl",
            "what to do   start again; after three equal ends the next start is refused",
        ],
    )

    begun, may_end = tmp_path / "begun", tmp_path / "may_end"

    def wait() -> None:
        begun.touch()
        while not may_end.exists():
            time.sleep(0.01)

    pid = forked(lambda: looked.start(wait))
    while not begun.exists():
        time.sleep(0.01)
    status, said = looked.said("--last")
    assert (status, said[-1]) == (69, "ended        not yet: it still trains")
    assert looked.said()[1][-1].split("  ")[-1] == "still trains"
    os.kill(pid, signal.SIGTERM)
    may_end.touch()
    assert status_of(pid) == 0
    status, said = looked.said("--last")
    assert (status, said[3]) == (75, "ended        stopped by SIGTERM at step 8")
    assert [line for line in said if line.startswith("first cause")] == []

    assert train(looked.words) == 0
    status, said = looked.said("--last")
    assert (status, said[-1]) == (0, "what to do   nothing is left to do")
    command = [sys.executable, "-m", "pretrain.inspect", "attempts", str(looked.root)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    status, said = looked.said()
    assert (status, len(done.stdout.splitlines())) == (0, len(said))
    assert [re.split(r"  +", line.strip()) for line in said] == [
        ["attempt", "steps", "processes", "began (UTC)", "took", "status", "ended", "first cause"],
        ["1", "0 to 3", "1", "DAY", "TIME at least", "75", "killed"],
        ["2", "2 to 5", "1", "DAY", "TIME", "70", "error", "rank 0: RuntimeError: no kernel"],
        ["3", "4 to 8", "1", "DAY", "TIME", "75", "stopped by SIGTERM at step 8"],
        ["4", "8 to 12", "1", "DAY", "TIME", "0", "finished"],
    ]


def test_a_start_that_would_be_refused_is_a_matter_of_the_input(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    written = WrittenStarts(tmp_path)
    (tmp_path / "run.json").write_text(f'{{"format": "{FORMAT}"}}')
    assert main(["attempts", str(tmp_path), "--last"]) == 78
    assert "attempts.jsonl has no start" in capsys.readouterr().err
    written.failed(SAME - 1)
    assert main(["attempts", str(tmp_path), "--last"]) == 70
    written.failed(1)
    capsys.readouterr()
    assert main(["attempts", str(tmp_path), "--last"]) == 78
    said = capsys.readouterr().out.splitlines()
    assert said[4].startswith("class        error (70)")
    assert said[-1].startswith("what to do   the next start is refused: the last 3 starts ended at step 7 by the same ")


def test_the_last_start_is_waited_for_while_its_process_ends(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rank 0 writes its end and frees the directory some seconds after another node's rank was killed."""
    written = WrittenStarts(tmp_path)
    (tmp_path / "run.json").write_text(f'{{"format": "{FORMAT}"}}')
    written.start(exit_class=None)
    held, looks = [RunLock(tmp_path)], itertools.count(1)

    def sleep(seconds: float) -> None:
        if next(looks) == 3:
            written.run.end_attempt(1, "peer")
            held.clear()

    monkeypatch.setattr(attempts.time, "sleep", sleep)
    assert main(["attempts", str(tmp_path), "--last"]) == 69
    assert main(["attempts", str(tmp_path), "--last", "--wait", "600"]) == 71
    assert next(looks) == 4
    capsys.readouterr()


def test_a_start_that_trains_on_is_waited_for_no_longer_than_is_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written = WrittenStarts(tmp_path)
    (tmp_path / "run.json").write_text(f'{{"format": "{FORMAT}"}}')
    written.start(exit_class=None)
    held, clock = RunLock(tmp_path), itertools.count(0.0, 0.4)
    monkeypatch.setattr(attempts.time, "monotonic", lambda: next(clock))
    monkeypatch.setattr(attempts.time, "sleep", lambda seconds: None)
    assert main(["attempts", str(tmp_path), "--last", "--wait", "40"]) == 69
    assert next(clock) == pytest.approx(0.4 * 102)  # now, and then until 40 s have passed
    assert main(["attempts", str(tmp_path), "--last", "--wait", "-1"]) == 78
    del held


def test_asking_whether_a_run_trains_takes_nothing_from_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert not is_held(tmp_path)
    assert not list(tmp_path.iterdir())
    with (tmp_path / LOCK).open("w") as asking:  # the lock that `is_held` has for a moment
        fcntl.flock(asking, fcntl.LOCK_SH)
        assert not is_held(tmp_path)
        with pytest.raises(ValueError, match="another process trains in this directory"):
            RunLock(tmp_path)
        monkeypatch.setattr(lock.time, "sleep", lambda _: fcntl.flock(asking, fcntl.LOCK_UN))  # until it looks again
        held = RunLock(tmp_path)
        monkeypatch.undo()
    assert is_held(tmp_path)
    del held
    assert not is_held(tmp_path)
