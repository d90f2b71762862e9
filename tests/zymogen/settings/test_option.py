"""How errors name a setting: by the option of the program that is running, or as a recipe does."""

import argparse
from collections.abc import Iterator

import pytest

from data.sources.protein import rejection
from finetune.embed.__main__ import main as embed
from finetune.predict.__main__ import main as predict
from zymogen.command_line.command import run_and_report
from zymogen.command_line.parser import CommandParser, PathParser
from zymogen.settings.origin import format_option, use_options


@pytest.fixture(autouse=True)
def _recipe_again() -> Iterator[None]:
    yield
    use_options(None)


def program(*arguments: str) -> argparse.Namespace:
    parser = PathParser()
    parser.add_argument("--too-long", choices=["start", "end"])
    parser.add_argument("--leave-out", dest="rows_without_protein", action="store_const", const="leave_out")
    parser.add_argument("table")
    return parser.parse_args(arguments)


def test_settings_are_named_as_a_recipe_does() -> None:
    assert format_option("data.too_long", "start", ", or set ", "!") == ", or set data.too_long = 'start'!"
    assert format_option("data.sequence") == "data.sequence"
    parser = CommandParser()
    parser.add_argument("recipe")
    parser.parse_args(["x.toml"])
    assert format_option("data.decimal", ",") == "data.decimal = ','"


def test_settings_are_named_by_the_options_of_the_program() -> None:
    program("x.csv")
    assert format_option("data.too_long", "start", ", or set ", "!") == ", or set --too-long start!"
    assert format_option("data.too_long") == "--too-long"
    assert format_option("data.rows_without_protein", "leave_out") == "--leave-out"
    assert format_option("data.rows_without_protein", "refuse") == ""
    assert format_option("data.decimal", ",", ", or set ") == ""
    assert format_option("data.table") == ""  # its place on the command line has no name


def test_a_command_that_ended_leaves_no_options() -> None:
    assert run_and_report(lambda: print(program("x.csv")), is_alone=True) == 0
    assert format_option("data.too_long", "end") == "data.too_long = 'end'"


@pytest.mark.parametrize(
    ("main", "expected"),
    [(embed, ", or set --unknown-letters count to read such letters as <unk>"), (predict, "record")],
)
def test_a_refused_letter_has_the_remedy_of_its_program(
    main: object, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    reasons = []

    def parsed(self: CommandParser, given: object = None, namespace: object = None) -> argparse.Namespace:
        use_options(self)
        found = rejection(b"x", b"M1K", "refuse")
        assert found is not None
        reasons.append(found.reason)
        raise ValueError("enough")

    monkeypatch.setattr(CommandParser, "parse_args", parsed)
    assert main([]) == 78  # type: ignore[operator]
    assert reasons[0].endswith(expected)
    assert "data." not in reasons[0]
