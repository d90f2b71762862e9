"""What real runs show: into a file, on a terminal, and of two processes only one."""

import os
import re
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import pytest

from pretrain.__main__ import main
from support.kept_runs import config
from support.launching import environment, lines
from support.places import ROOT
from support.rank_pool import RankPool

LINE = re.compile(
    r"step (?P<step>[\d,]+) of (?P<about>about )?(?P<steps>[\d,]+) \| loss (?P<loss>\d\.\d{3}) \| "
    r"perplexity (?P<perplexity>\d+\.\d\d) \| [\d.]+k tokens/s \| "
    r"(?P<share>[\d.]+) %(?: \| (?P<left>\d+:\d\d) left)?"
)
BLOCK = (
    *("model    ", "proteins    ", "split    ", "memory    ", "one pass    ", "training    ", "run directory "),
    "compute: ",
)


def told(shown: str) -> list[re.Match[str]]:
    """The lines of progress."""
    return [match for line in shown.splitlines() if (match := LINE.fullmatch(line))]


def check_start(shown: Sequence[str], run_dir: Path) -> None:
    """The block is there, aligned, once, before the first step."""
    starts = [line for line in shown if line.startswith(BLOCK)]
    assert [next(name for name in BLOCK if line.startswith(name)) for line in starts] == list(BLOCK)
    assert starts[0] == "model         esm2_60k, 60,705 parameters: ESM-2, 2 layers, width 48"
    assert re.fullmatch(r"proteins      1\d\d for training, \d\d for validation", starts[1])
    assert starts[2].startswith("split         by clusters of")
    assert re.fullmatch(r"memory        about \d\.\d\d GB a process \(1 MB activations, 1 MB model\)", starts[3])
    assert re.fullmatch(r"one pass      about [\d,]+ tokens", starts[4])
    assert re.fullmatch(r"training      22,000 tokens, about \d\d steps of [78]\d\d, \d\.\d\d passes", starts[5])
    assert starts[6] == f"run directory {run_dir}"
    first_step = next(number for number, line in enumerate(shown) if line.startswith("step "))
    assert shown.index(starts[7]) < first_step
    assert all(len(line) <= 80 for line in shown[:first_step] if str(run_dir.parent) not in line and "/" not in line)


@pytest.mark.slow
def test_a_run_into_a_file(recipe_in, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(recipe_in(tmp_path)), "run.evaluate_every=10"]) == 0
    shown = capsys.readouterr().err
    check_start(shown.splitlines(), tmp_path / "run")
    steps = told(shown)
    last = int(steps[-1]["step"])
    assert [int(match["step"]) for match in steps] == list(range(1, last + 1))
    assert all(abs(int(match["steps"]) - last) <= 1 for match in steps)
    assert [match["about"] for match in steps] == ["about "] * (last - 1) + [None]
    assert steps[-1]["steps"] == str(last)
    assert [match["left"] is None for match in steps[:3]] == [True, False, False]
    assert (steps[0]["share"], steps[-1]["share"]) == (f"{steps[0]['share']}", "100")
    metrics = [line for line in lines(tmp_path / "run/metrics.jsonl") if "loss" in line]
    for match, line in zip(steps, metrics, strict=True):
        assert match["loss"] == f"{line['loss']:.3f}"
        assert float(match["perplexity"]) == pytest.approx(2.718281828 ** line["loss"], abs=6e-3)
        if line["step"] < last:
            assert float(match["share"]) == pytest.approx(line["tokens"] / 220, abs=0.101)


def on_a_terminal(words: Sequence[str], columns: int = 80) -> tuple[int, str]:
    """Exit status of a command whose output is a terminal, and all that it wrote there."""
    ours, theirs = os.openpty()
    settings = {**environment(), "COLUMNS": str(columns), "TERM": "xterm-256color"}
    program = subprocess.Popen(words, cwd=ROOT, env=settings, stdout=theirs, stderr=theirs, stdin=subprocess.DEVNULL)
    os.close(theirs)
    shown = b""
    with suppress(OSError):  # the program has closed its end
        while piece := os.read(ours, 1 << 16):
            shown += piece
    os.close(ours)
    return program.wait(), shown.decode("utf-8", "replace")


@pytest.mark.launch
def test_a_run_on_a_terminal(recipe_in, tmp_path: Path) -> None:
    words = [sys.executable, "-m", "pretrain", str(recipe_in(tmp_path)), "schedule.total_tokens=8_000"]
    status, shown = on_a_terminal(words)
    assert status == 0, shown
    plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", shown)
    assert plain.count("run directory ") == 1
    assert "\x1b[1A" in shown  # the line is drawn again in its place; how often depends on how long the run takes
    frames = " ".join(plain.replace("\r", "\n").split())
    # The screen is drawn ten times a second, so that a short step may never be seen.
    assert re.search(r"step \d+ of about \d+ \| loss ", frames)
    final = re.search(r"step (\d+) of (\d+) \| loss (?:[^|]+\|){3,4} 100 %", frames)
    assert final is not None
    assert final[1] == final[2]
    assert "Trained on " in frames


@pytest.mark.launch
@pytest.mark.xdist_group("engines")
def test_of_two_processes_one_speaks(pool: RankPool, recipe_in, tmp_path: Path) -> None:
    done = pool.run(2, config("ddp"), [recipe_in(tmp_path), "schedule.total_tokens=5_000"])
    assert done.status == 0, done.output
    shown = done.output.splitlines()
    for name in (*BLOCK, "step 1 of about "):
        assert sum(line.startswith(name) for line in shown) == 1, name
    steps = [int(match["step"]) for match in told(done.output)]
    assert steps == list(range(1, len(steps) + 1))
    assert told(done.output)[-1]["share"] == "100"
