"""The cores that other programs use: one that computes counts, this process and its children do not."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from signal import SIGKILL

import psutil
import pytest

from zymogen.trainer.telemetry.neighbours import OtherLoad

SPIN = [sys.executable, "-c", "while True: sum(range(1000))"]


@pytest.fixture
def orphan() -> Iterator[psutil.Process]:
    """A program that computes, and is no child of this process."""
    start = ["sh", "-c", '"$@" >/dev/null 2>&1 & echo $!', "sh", *SPIN]
    pid = int(subprocess.run(start, capture_output=True, check=True).stdout)
    yield psutil.Process(pid)
    os.kill(pid, SIGKILL)


def test_a_program_beside_this_one_is_counted_and_this_one_is_not(
    orphan: psutil.Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The machine's counters are those of the three processes, whatever else runs on it."""
    child = subprocess.Popen(SPIN)
    three = psutil.Process(), psutil.Process(child.pid), orphan

    class Times:
        user = property(lambda self: sum(process.cpu_times().user for process in three))
        system = property(lambda self: sum(process.cpu_times().system for process in three))

    monkeypatch.setattr(psutil, "cpu_times", Times)
    used = sum(orphan.cpu_times()[:2])
    with OtherLoad() as neighbours:
        until = time.perf_counter() + 0.5
        while time.perf_counter() < until:
            sum(range(1000))
    used = sum(orphan.cpu_times()[:2]) - used
    child.kill()
    child.wait()
    assert neighbours.cores(1) == pytest.approx(used / 0.5, abs=0.15)
    assert neighbours.cores(2) < neighbours.cores(1)
