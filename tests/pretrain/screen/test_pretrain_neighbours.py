"""The cores that other programs use: a child that computes counts, this process does not."""

import multiprocessing
import time
from multiprocessing.synchronize import Event

import psutil
import pytest

from pretrain.telemetry.neighbours import Neighbours


def spin(stop: Event) -> None:
    while not stop.is_set():
        sum(range(1000))


def test_a_program_beside_this_one_is_counted_and_this_one_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    """The machine's counters are those of this process and its child, whatever else runs on it."""
    stop = multiprocessing.get_context("fork").Event()
    child = multiprocessing.get_context("fork").Process(target=spin, args=(stop,))
    child.start()
    processes = psutil.Process(), psutil.Process(child.pid)

    class Times:
        user = property(lambda self: sum(process.cpu_times().user for process in processes))
        system = property(lambda self: sum(process.cpu_times().system for process in processes))

    monkeypatch.setattr(psutil, "cpu_times", Times)
    used = sum(processes[1].cpu_times()[:2])
    with Neighbours() as neighbours:
        until = time.perf_counter() + 0.5
        while time.perf_counter() < until:
            sum(range(1000))
    used = sum(processes[1].cpu_times()[:2]) - used
    stop.set()
    child.join()
    assert neighbours.cores(1) == pytest.approx(used / 0.5, abs=0.15)
    assert neighbours.cores(2) < neighbours.cores(1)
