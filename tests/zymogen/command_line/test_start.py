"""While a command imports torch, Python looks for no garbage; afterwards it does, but not among what was imported.

Its threads wait awake for each other for a moment alone.
"""

import gc
import subprocess
import sys

import pytest

from support.launching import environment
from zymogen.command_line.command import importing_torch, short_switch_interval


@pytest.fixture
def without_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a process that has not imported it."""
    monkeypatch.delitem(sys.modules, "torch")
    monkeypatch.setenv("GOMP_SPINCOUNT", "0")  # to be put back: what the command sets would stay


@pytest.mark.usefixtures("without_torch")
def test_what_is_imported_is_not_looked_through() -> None:
    frozen = gc.get_freeze_count()
    with importing_torch():
        assert not gc.isenabled()
        imported = [[number] for number in range(2_000)]
    assert gc.isenabled()
    assert gc.get_freeze_count() >= frozen + len(imported)


_OF_WAITING = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT")
_IMPORTS = """
from zymogen.command_line.command import importing_torch
with importing_torch():
    import torch
"""


@pytest.mark.parametrize("own", [{"GOMP_SPINCOUNT": "7"}, {"OMP_WAIT_POLICY": "passive"}])
def test_what_a_user_says_of_waiting_stays(own: dict[str, str]) -> None:
    assert short_switch_interval({"HOME": "/home"}) == {"GOMP_SPINCOUNT": "10000"}
    assert short_switch_interval({"HOME": "/home"} | own) == {}


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="torch has another OpenMP there")
@pytest.mark.parametrize(
    ("own", "spins"),
    [
        ({}, "10000"),
        pytest.param({"GOMP_SPINCOUNT": "7"}, "7", marks=pytest.mark.slow),
        pytest.param({"OMP_WAIT_POLICY": "passive"}, "0", marks=pytest.mark.slow),
    ],
)
def test_threads_wait_awake_for_a_moment_alone_unless_they_were_told_otherwise(own: dict[str, str], spins: str) -> None:
    """What the library of torch's threads says of itself when it is loaded."""
    words = [sys.executable, "-c", _IMPORTS]
    variables = {name: value for name, value in environment().items() if name not in _OF_WAITING}
    said = subprocess.run(
        words,
        env=variables | {"OMP_DISPLAY_ENV": "verbose"} | own,
        capture_output=True,
        text=True,
        check=True,
    ).stderr
    assert f"GOMP_SPINCOUNT = '{spins}'" in said
