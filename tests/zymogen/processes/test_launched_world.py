"""The variables of launchers: whole, or one error that names the variable, before torch is imported."""

import re
import sys
from collections.abc import Mapping

import pytest

from pretrain.__main__ import main
from support.launching import torchrun_variables, without_launch
from zymogen.processes.launcher import LaunchedWorld, launched_world

WHOLE = {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "29500"}
NUMBERS = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_WORLD_SIZE", "MASTER_PORT")


@pytest.fixture
def world_of(monkeypatch: pytest.MonkeyPatch):
    def read(variables: Mapping[str, str]) -> LaunchedWorld:
        with monkeypatch.context() as patch:
            patch.setattr("os.environ", {**without_launch({}), **variables})
            return launched_world()

    return read


def test_a_process_without_a_launcher_is_alone(world_of) -> None:
    assert world_of({}) == LaunchedWorld(0, 1, None, 1, "", 0)
    assert world_of({"WORLD_SIZE": "1"}) == world_of({"RANK": "0"}) == LaunchedWorld()


def test_what_launchers_set_is_read(world_of) -> None:
    assert world_of(WHOLE) == LaunchedWorld(1, 2, None, 1, "10.0.0.1", 29500)
    assert world_of(torchrun_variables(3, 8, 40000)) == LaunchedWorld(3, 8, 8, 1, "127.0.0.1", 40000)


@pytest.mark.parametrize("text", ["", " ", "two", "-1", "1.5", "²", "0x2"])
@pytest.mark.parametrize("name", NUMBERS)
def test_a_variable_that_is_no_number_is_named(world_of, name: str, text: str) -> None:
    whole = torchrun_variables(0, 2, 29500)
    with pytest.raises(ValueError, match=rf"^{name} is {text!r} in the environment; it must be a whole number"):
        world_of({**whole, name: text})


@pytest.mark.parametrize("missing", WHOLE)
@pytest.mark.parametrize("how", ["missing", "empty"])
def test_a_variable_of_several_processes_that_is_missing_is_named(world_of, missing: str, how: str) -> None:
    variables = {name: text for name, text in WHOLE.items() if name != missing}
    if how == "empty":
        variables[missing] = ""
    with pytest.raises(ValueError, match=rf"^{missing} is (missing|empty|'') in the environment"):
        world_of(variables)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"RANK": "2"}, "RANK is 2 in the environment; it must be below 2"),
        ({"LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "1"}, "LOCAL_RANK is 1 in the environment; it must be below 1"),
        ({"MASTER_PORT": "65536"}, "MASTER_PORT is 65536 in the environment; it must be below 65,536"),
    ],
)
def test_a_number_that_is_too_large_is_named(world_of, change: dict[str, str], named: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(named)}"):
        world_of({**WHOLE, **change})


@pytest.mark.parametrize(
    "variables", [{"LOCAL_RANK": "0"}, {"RANK": "1"}, {"WORLD_SIZE": "2"}, {"WORLD_SIZE": "2", "RANK": "0"}]
)
def test_a_few_variables_alone_are_no_launch(world_of, variables: dict[str, str]) -> None:
    with pytest.raises(ValueError, match=r"needs RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT"):
        world_of(variables)


@pytest.mark.parametrize("variable", ["RANK", "WORLD_SIZE", "LOCAL_RANK"])
def test_the_command_says_one_line_before_it_imports_torch(
    variable: str, recipe_in, tmp_path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "zymogen.trainer.engine.launch", None)  # cannot be imported
    monkeypatch.setenv(variable, "")
    assert main([str(recipe_in(tmp_path))]) == 78
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"error: {variable} is '' in the environment; it must be a whole number")
