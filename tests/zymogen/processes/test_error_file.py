"""Under a launcher, the last thing on the screen is this program's own line, and the exit status is not 0."""

import json
import signal
import time
from pathlib import Path

import pytest

from pretrain.__main__ import main
from support.launching import command, run, torchrun_variables
from support.places import ROOT
from zymogen.processes.errors import PeerError
from zymogen.processes.launcher import VARIABLE, forward_exit_status
from zymogen.processes.signals import Interrupted

SINGLE = ROOT / "accelerate_configs" / "single.yaml"


@pytest.fixture
def error_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file that torchrun would read, in a folder of its own."""
    folder = tmp_path / "attempt_0"
    folder.mkdir()
    monkeypatch.setenv(VARIABLE, str(folder / "error.json"))
    return folder / "error.json"


def test_torchrun_reads_the_line_as_its_last_message(error_file: Path) -> None:
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError, ProcessFailure

    before = int(time.time())
    forward_exit_status("error: my.fasta: no such file")
    first = ProcessFailure(0, 11, 2, str(error_file))
    ended_by_torchrun = ProcessFailure(1, 12, -15, "none")
    assert before <= first.timestamp <= time.time()
    *_, last, border = str(ChildFailedError("pretrain", {0: first, 1: ended_by_torchrun})).splitlines()
    assert last == "error: my.fasta: no such file"
    assert set(border) == {"="}
    assert [path.name for path in error_file.parent.iterdir()] == ["error.json"]


def test_an_error_of_the_program_is_told_in_its_last_line(
    error_file: Path, recipe_in, tmp_path: Path, capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("out of memory")

    monkeypatch.setattr("pretrain.__main__._train", fail)
    assert main([str(recipe_in(tmp_path))]) == 70
    assert capsys.readouterr().err.startswith("Traceback")
    assert json.loads(error_file.read_text())["message"].splitlines()[-1] == "RuntimeError: out of memory"


def test_what_only_saw_another_fail_tells_nothing(
    error_file: Path, recipe_in, tmp_path: Path, capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise PeerError("rank 0 failed: ValueError: x")

    slept = []
    for name, value in torchrun_variables(1, 2, 29500).items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr("zymogen.command_line.command.time.sleep", slept.append)
    monkeypatch.setattr("pretrain.__main__._train", fail)
    assert main([str(recipe_in(tmp_path))]) == 71
    assert (capsys.readouterr().err, error_file.exists()) == ("", False)
    assert slept == [5.0]  # rank 0 ends first, and is the one that the launcher tells of


@pytest.mark.parametrize("failure", [ValueError("a mistake"), PeerError("rank 0 failed: ValueError: a mistake")])
def test_a_rank_that_waits_for_rank_0_is_ended_without_a_word(
    failure: Exception,
    error_file: Path,
    recipe_in,
    tmp_path: Path,
    capsys: pytest.CaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(*_: object) -> None:
        raise failure

    def ended_by_the_launcher(_: float) -> None:
        raise Interrupted(signal.SIGTERM)

    for name, value in torchrun_variables(1, 2, 29500).items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr("zymogen.command_line.command.time.sleep", ended_by_the_launcher)
    monkeypatch.setattr("pretrain.__main__._train", fail)
    assert main([str(recipe_in(tmp_path))]) == 75
    assert (capsys.readouterr().err, error_file.exists()) == ("", False)


# The real launchers -------------------------------------------------------------------------------


@pytest.mark.launch
@pytest.mark.parametrize("wrong", ["run.sead=1", "data.sources=none.fasta"])
def test_one_process_under_the_launcher_says_one_line(recipe_in, tmp_path: Path, wrong: str) -> None:
    done = run(command([recipe_in(tmp_path), wrong], 1, SINGLE))
    assert done.status == 1  # Accelerate's
    (line,) = done.output.splitlines()
    assert line.startswith(f"error: on the command line, {wrong}: ")
    assert [path.name for path in tmp_path.iterdir()] == ["recipe.toml"]
