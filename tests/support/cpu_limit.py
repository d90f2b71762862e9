"""A limit on the CPU time of a test that says by no mark that it is long: `--most-cpu-s`, as .ci/run sets it.

CPU time counts the test's children, also those that outlive it, such as kept ranks: what they have used is read before
and after. A process whose parent was killed is no longer seen.
"""

import os
from collections.abc import Generator

import psutil
import pytest

MARKS = ("launch", "slow", "prove")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--most-cpu-s", type=float, metavar="S", help=f"fail a test above it with none of the marks {', '.join(MARKS)}"
    )


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    most = item.config.getoption("--most-cpu-s")
    if most is None or any(item.get_closest_marker(mark) for mark in MARKS):
        return (yield)
    before = cpu_s()
    result = yield
    if (taken := cpu_s() - before) > most:
        pytest.fail(f"took {taken:.1f} s of CPU time, more than {most:g}: make it shorter, or mark it slow", False)
    return result


def cpu_s() -> float:
    """CPU seconds of this process and of all below it, ended ones included."""
    used = sum(os.times()[:4])
    for process in psutil.Process().children(recursive=True):
        try:
            used += sum(process.cpu_times()[:4])
        except psutil.NoSuchProcess:  # it has just ended, and its parent counts it
            continue
    return used
