"""Signals to real processes: the program alone, Accelerate's launcher of one process, and that of several."""

import os
import re
import signal
import sys
from pathlib import Path
from signal import SIGINT, SIGTERM, SIGUSR1

import psutil
import pytest

from support.kept_runs import Trained, config
from support.launching import bit_equal, command, end_of, lines, started, until
from support.places import ROOT
from support.rank_pool import RankPool

pytestmark = [pytest.mark.launch, pytest.mark.xdist_group("engines")]

STEPS_36 = ("schedule.total_tokens=26_400",)
ALONE = [sys.executable, "-m", "pretrain"]
SINGLE = ROOT / "accelerate_configs/single.yaml"


def at_step(root: Path, step: int) -> bool:
    return any(line["step"] >= step for line in lines(root / "metrics.jsonl"))


def ends(root: Path) -> list[str]:
    return [line["exit"] for line in lines(root / "attempts.jsonl") if "exit" in line]


def blocks(pid: int, by: signal.Signals) -> bool:
    """Whether a signal waits for ever before it reaches the process."""
    mask = re.search(r"SigBlk:\s*(\w+)", Path(f"/proc/{pid}/status").read_text())
    assert mask
    return bool(int(mask[1], 16) >> (by - 1) & 1)


def assert_goes_on(pool: RankPool, words: list[str], root: Path, trained: Trained, processes: int) -> None:
    """From the step that was saved last, to the end of a run that nobody stopped."""
    last = max(line["step"] for line in lines(root / "metrics.jsonl"))
    assert last < 36
    spread = ("ddp" if processes > 1 else "single", processes)
    done = pool.run(processes, config(spread[0]), words[words.index("pretrain") + 1 :])
    assert done.status == 0, done.output
    starts = [line for line in lines(root / "attempts.jsonl") if "cause" in line]
    assert starts[1]["base_step"] == last
    assert starts[1]["cause"].endswith(f"at step {last}")
    reference = trained(*spread, length=STEPS_36).end
    assert end_of(root).chain == reference.chain
    assert bit_equal(end_of(root), reference)


def test_control_c_at_a_terminal(pool: RankPool, recipe_in, trained: Trained, tmp_path: Path) -> None:
    """It reaches the workers of the loader, too, without which the step could not be finished."""
    words = [*ALONE, str(recipe_in(tmp_path)), *STEPS_36, "data.workers=2"]
    root, log = tmp_path / "run", tmp_path / "log"
    with started(words, log) as process:
        until(lambda: at_step(root, 5), log)
        children = psutil.Process(process.pid).children(recursive=True)
        workers = [each for each in children if os.getsid(each.pid) == each.pid]
        assert len(workers) == 2  # in groups of their own
        assert blocks(workers[0].ppid(), SIGTERM)  # the server that forked them ends with the program alone
        assert not blocks(workers[0].pid, SIGTERM)  # with which the program ends one that does not end by itself
        os.killpg(process.pid, SIGINT)
        assert process.wait(60) == 130, log.read_text()
    said = log.read_text()
    assert "Traceback" not in said
    (step,) = {line["step"] for line in lines(root / "metrics.jsonl")[-1:]}
    assert ends(root) == [f"stopped by SIGINT at step {step}"]
    assert said.splitlines()[-1].endswith(f"python -m pretrain {' '.join(words[3:])}")
    assert_goes_on(pool, words, root, trained, 1)


def test_a_signal_to_save_that_all_processes_get(recipe_in, tmp_path: Path) -> None:
    """As `scancel --signal=USR1` sends it: no worker of the loader ends by it, nor the server that forks them."""
    words = [*ALONE, str(recipe_in(tmp_path)), *STEPS_36, "data.workers=1", "run.checkpoint_every=1000"]
    root, log = tmp_path / "run", tmp_path / "log"
    with started(words, log) as process:
        for step in (5, 10, 15):
            until(lambda step=step: at_step(root, step) or process.poll() is not None, log)
            family = [psutil.Process(process.pid), *psutil.Process(process.pid).children(recursive=True)]
            assert len(family) > 3  # the fork server, its tracker and a worker
            for each in family:
                os.kill(each.pid, SIGUSR1)
        assert process.wait(100) == 0, log.read_text()
    *asked, last = (line["step"] for line in lines(root / "metrics.jsonl") if "checkpoint_s" in line)
    assert asked
    assert all(5 < step < last for step in asked)
    assert ends(root) == ["finished"]


@pytest.mark.prove
def test_the_launcher_of_one_process_is_ended(pool: RankPool, recipe_in, trained: Trained, tmp_path: Path) -> None:
    """It passes no signal on, and the program stops nevertheless."""
    words = command([recipe_in(tmp_path), *STEPS_36], 1, SINGLE)
    root, log = tmp_path / "run", tmp_path / "log"
    with started(words, log) as launcher:
        until(lambda: at_step(root, 5), log)
        launcher.send_signal(SIGTERM)
        assert launcher.wait(60) == -SIGTERM
        until(lambda: bool(ends(root)), log, 60)
        until(lambda: "to continue: " in log.read_text(), log, 10)
    (end,) = ends(root)
    assert end.startswith("stopped by SIGTERM at step ")
    assert_goes_on(pool, words, root, trained, 1)


@pytest.mark.parametrize(
    "by", [pytest.param(SIGINT, marks=pytest.mark.prove), pytest.param(SIGTERM, marks=pytest.mark.slow)]
)
def test_the_launcher_of_two_processes(
    pool: RankPool, recipe_in, trained: Trained, tmp_path: Path, by: signal.Signals
) -> None:
    words = command([recipe_in(tmp_path), *STEPS_36, "data.workers=1"], 2)
    root, log = tmp_path / "run", tmp_path / "log"
    with started(words, log) as launcher:
        until(lambda: at_step(root, 5), log)
        os.killpg(launcher.pid, by)
        assert launcher.wait(60) == 1  # the launcher's own status
    (end,) = ends(root)
    assert end.startswith(f"stopped by {by.name} at step ")
    (said,) = (line for line in log.read_text().splitlines() if line.startswith("stopped by "))
    launched = words.index("accelerate.commands.launch")
    assert said.endswith(" ".join(words[launched:]))
    assert_goes_on(pool, words, root, trained, 2)
