"""Which tests run when: every test in one tier of the Makefile, and a limit for those that every change runs."""

import re
from collections.abc import Iterable
from itertools import chain, combinations

import pytest
from _pytest.mark.expression import Expression

from support.mutations import tiers
from support.places import ROOT

pytest_plugins = ["pytester"]

MARKS = ("canary", "launch", "slow", "prove")
CONFTEST = "from support.cpu_limit import pytest_addoption, pytest_runtest_call"
BURNS = "import time\nend = time.process_time() + 0.3\nwhile time.process_time() < end: pass"
SLEEPS = "import time\ntime.sleep(0.3)"


def chosen(expressions: Iterable[str], marks: tuple[str, ...]) -> int:
    return sum(Expression.compile(text).evaluate(lambda name: name in marks) for text in expressions)


def test_every_test_is_in_one_tier() -> None:
    assert list(tiers(ROOT)) == ["test", "test-engines", "test-slow", "prove"]
    for marks in chain.from_iterable(combinations(MARKS, count) for count in range(len(MARKS) + 1)):
        assert chosen(tiers(ROOT).values(), marks) == 1, marks
    # A tier that ran canaries again would be found.
    assert chosen([*tiers(ROOT).values(), "launch"], ("canary", "launch")) == 2


def test_ci_runs_every_tier_but_that_of_a_release() -> None:
    ran = [line.removeprefix("make ") for line in (ROOT / ".ci/run").read_text().splitlines() if line[:5] == "make "]
    assert ran == ["check", "test", "test-rest"]
    (rest,) = re.findall(r"^test-rest: setup ##.*\n\t\$\(PYTEST\) -m '(.*)'$", (ROOT / "Makefile").read_text(), re.M)
    both = [tiers(ROOT)[tier] for tier in ("test-engines", "test-slow")]
    for marks in chain.from_iterable(combinations(MARKS, count) for count in range(len(MARKS) + 1)):
        assert chosen([rest], marks) == chosen(both, marks), marks


@pytest.mark.parametrize(
    ("mark", "program", "kept", "outcome"),
    [
        pytest.param("", BURNS, False, {"failed": 1}, id="ended"),
        pytest.param("", BURNS, True, {"failed": 1}, id="kept"),
        pytest.param("", SLEEPS, False, {"passed": 1}, id="sleeps"),
        pytest.param("@pytest.mark.slow", BURNS, False, {"passed": 1}, id="slow"),
        pytest.param("@pytest.mark.canary", BURNS, False, {"failed": 1}, id="canary that launches nothing"),
    ],
)
def test_a_test_that_takes_long_must_say_so(
    pytester: pytest.Pytester, mark: str, program: str, kept: bool, outcome: dict[str, int]
) -> None:
    """The time of a child that ended, or of one that lives on."""
    pytester.makeini("[pytest]\nmarkers =\n    slow:\n    canary:\n")
    pytester.makeconftest(CONFTEST)
    waits = "\nprint(flush=True)\nimport time\ntime.sleep(20)" if kept else "\nprint(flush=True)"
    pytester.makepyfile(f"""
        import subprocess, sys, pytest

        {mark}
        def test_child(request):
            child = subprocess.Popen([sys.executable, "-Sc", {program + waits!r}], stdout=subprocess.PIPE)
            request.config.add_cleanup(child.kill)
            child.stdout.readline()
            {"" if kept else "child.wait()"}
    """)
    done = pytester.runpytest_inprocess("--most-cpu-s=0.2", "-p", "no:cacheprovider")
    done.assert_outcomes(**outcome)
    if "failed" in outcome:
        done.stdout.fnmatch_lines(["*took 0.* s of CPU time, more than 0.2: make it shorter, or mark it slow*"])


def test_without_a_limit_every_test_may_take_its_time(pytester: pytest.Pytester) -> None:
    pytester.makeconftest(CONFTEST)
    pytester.makepyfile(f"def test_burns():\n    exec({BURNS!r})")
    pytester.runpytest_inprocess("-p", "no:cacheprovider").assert_outcomes(passed=1)


@pytest.mark.slow
def test_tests_of_a_group_run_in_one_process(pytester: pytest.Pytester) -> None:
    """Or each process makes the runs that they share; xdist ignores groups without a word where it cannot keep them."""
    pytester.makeini("[pytest]")
    pytester.makepyfile("""
        import os, pytest, time

        @pytest.mark.parametrize("number", range(6))
        @pytest.mark.xdist_group("shared")
        def test_grouped(number):
            open(f"{os.getpid()}.grouped", "w")

        @pytest.mark.parametrize("number", range(12))
        def test_alone(number):
            time.sleep(0.05)  # or one process does all twelve while the other is in the group
            open(f"{os.getpid()}.alone", "w")
    """)
    words = re.search(r"^PYTEST = \S+ -m pytest (.*)$", (ROOT / "Makefile").read_text(), re.M)
    assert words is not None
    pytester.runpytest_subprocess(*words[1].split(), "-p", "no:cacheprovider").assert_outcomes(passed=18)
    assert len(list(pytester.path.glob("*.grouped"))) == 1
    assert len(list(pytester.path.glob("*.alone"))) == 2
