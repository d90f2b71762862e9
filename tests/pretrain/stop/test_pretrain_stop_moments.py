"""Signals at fifty random moments of real launches, in one to three processes: the same command ends at the same bytes.

Each moment is a seed: how many processes, which signal, which phase, and how long after its first sign. What a moment
met is printed; `-rP` shows it.
"""

import os
import random
import sys
import time
from collections.abc import Callable
from pathlib import Path
from signal import SIGINT, SIGTERM

import psutil
import pytest

from support.kept_runs import STEPS_30, Trained
from support.launching import bit_equal, command, end_of, lines, run, started, until
from support.places import ROOT
from zymogen.processes.signals import STATUS

pytestmark = [pytest.mark.launch, pytest.mark.slow, pytest.mark.prove, pytest.mark.xdist_group("engines")]

SINGLE = ROOT / "accelerate_configs/single.yaml"
MOST_S = 30.0
"""From the signal to the end: ten seconds from a step's end, and the interpreter's start on a busy machine."""


def step_is(root: Path, step: int) -> bool:
    return any(line["step"] >= step for line in lines(root / "metrics.jsonl"))


def has(folder: Path, pattern: str) -> bool:
    return folder.is_dir() and any(folder.glob(pattern))


PHASES: dict[str, Callable[[Path, int], bool]] = {
    # sign of a phase, given the run directory and a step drawn for the moment
    "launch": lambda root, step: True,
    "build": lambda root, step: has(root.parent / "stores", "*"),
    "start": lambda root, step: has(root, "run.json"),
    "step": step_is,
    "validation": lambda root, step: step_is(root, 7 * (1 + step // 10)),
    "save": lambda root, step: has(root / "checkpoints", ".tmp-*") or step_is(root, 20),
    "export": lambda root, step: has(root, ".export-*"),
}


@pytest.mark.parametrize("seed", range(50))
def test_at_a_random_moment(recipe_in, trained: Trained, tmp_path: Path, seed: int) -> None:
    draw = random.Random(seed)
    phase = list(PHASES)[seed % len(PHASES)]
    processes, by, step = draw.randint(1, 3), draw.choice((SIGINT, SIGTERM)), draw.randint(1, 28)
    arguments = [str(recipe_in(tmp_path)), *STEPS_30, "run.evaluate_every=7", f"data.workers={draw.randint(0, 1)}"]
    launched = processes > 1 or draw.random() < 0.3
    words = [sys.executable, "-m", "pretrain", *arguments]
    if launched:
        words = command(arguments, processes, *([SINGLE] if processes == 1 else []))
    root, log = tmp_path / "run", tmp_path / "log"
    with started(words, log) as process:
        until(lambda: PHASES[phase](root, step) or process.poll() is not None, log)
        time.sleep(draw.uniform(0, 3.0 if phase == "launch" else 0.3))
        family = [psutil.Process(process.pid), *psutil.Process(process.pid).children(recursive=True)]
        came_s = time.monotonic()
        os.killpg(process.pid, by)
        status = process.wait(MOST_S)
        _, alive = psutil.wait_procs(family, MOST_S)
        took_s = time.monotonic() - came_s
    said = log.read_text()
    assert alive == [], said
    trained_to = max((line["step"] for line in lines(root / "metrics.jsonl")), default=0)
    attempts = lines(root / "attempts.jsonl")
    print(f"seed {seed}: {processes} processes, {by.name} at {phase}, status {status}, {took_s:.1f} s")
    print(f"  {attempts[-1] if attempts else 'no trace'}")
    expected = {STATUS[by], -by} | (
        {1} if launched else set()
    )  # before the program hears, the interpreter ends as usual
    assert status in expected | {0}, said
    if status == 0:  # it came after the end
        assert attempts[-1]["exit"] == "finished"
    elif attempts and trained_to:
        assert attempts[-1]["exit"] == f"stopped by {by.name} at step {trained_to}", said
    done = run(words)
    assert done.status == 0, done.output
    (base,) = [line["base_step"] for line in lines(root / "attempts.jsonl") if "base_step" in line][-1:]
    assert base == trained_to  # no step was lost
    reference = trained("ddp" if processes > 1 else "single", processes, length=STEPS_30).end
    assert end_of(root).chain == reference.chain
    assert bit_equal(end_of(root), reference)
    assert (root / "export/model.safetensors").exists()
