"""A program with what it starts in its turn, and a builder: they end with the process that began them."""

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from signal import SIGINT, SIGKILL

import psutil
import pytest

from support.places import ROOT
from zymogen.processes.parent import run

RUNS = """
import sys
from pathlib import Path
from zymogen.processes.parent import run
run(["sh", "-c", "sleep 60 & echo $$ $! > pids; sleep 60"], Path(sys.argv[1]))
"""


BUILDS = """
import sys, time
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from stalls import stall
from data.store.builder_process import start
start(stall, Path(sys.argv[1]) / "pids")
time.sleep(60)
"""
STALLS = """
import os, time
def stall(send, path):
    path.write_text(f"{os.getpid()}\\n")
    time.sleep(60)
"""


def lives(pid: int) -> bool:
    with suppress(psutil.NoSuchProcess):
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    return False


@pytest.mark.parametrize(
    ("program", "by"),
    [
        pytest.param(RUNS, SIGKILL, id="program, killed"),
        pytest.param(RUNS, SIGINT, id="program, interrupted"),
        pytest.param(BUILDS, SIGKILL, id="builder, killed"),
    ],
)
def test_none_is_left(tmp_path: Path, program: str, by: signal.Signals) -> None:
    (tmp_path / "stalls.py").write_text(STALLS)
    asks = subprocess.Popen([sys.executable, "-c", program, str(tmp_path)], cwd=ROOT, stderr=subprocess.DEVNULL)
    pids, end = tmp_path / "pids", time.monotonic() + 20
    while not (pids.exists() and pids.read_text().endswith("\n")):
        assert time.monotonic() < end
        time.sleep(0.01)
    started = [int(pid) for pid in pids.read_text().split()]
    assert all(map(lives, started))
    asks.send_signal(by)
    asks.wait(20)
    end = time.monotonic() + 3
    while any(map(lives, started)) and time.monotonic() < end:
        time.sleep(0.01)
    left = [pid for pid in started if lives(pid)]
    for pid in left:
        os.kill(pid, SIGKILL)
    assert not left


def test_what_a_program_says_and_how_it_ends(tmp_path: Path) -> None:
    done = run(["sh", "-c", "pwd; echo wrong >&2; exit 3"], tmp_path)
    assert (done.returncode, done.stdout.decode()) == (3, f"{tmp_path}\nwrong\n")
    assert run(["sh", "-c", "kill -9 $$"], tmp_path).returncode == 137
