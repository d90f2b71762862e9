"""How an error names a setting: as a recipe does, or by the option of the program that is running.

In: the parser of the command line. Out: "data.too_long = 'start'", "--too-long start", or nothing where the program has
no such option. Kept: the options of the program, in this process.
"""

import argparse

_PROGRAM: list[dict[str, argparse.Action]] = []
"""Empty, or one entry: the options of the program by the settings that they give."""
_TAKES_SETTINGS = ("recipe", "words")
"""Arguments of programs that take a recipe, and settings as a recipe names them."""


def use_options(parser: argparse.ArgumentParser | None) -> None:
    """Name settings by the options of a parser, each of which has the setting's name as `dest`.

    Args:
        parser: of the program that is running; None for the names of a recipe, as for a program that takes one.
    """
    _PROGRAM.clear()
    if parser is not None and not any(action.dest in _TAKES_SETTINGS for action in parser._actions):
        _PROGRAM.append({action.dest: action for action in parser._actions})


def format_option(setting: str, value: object = None, before: str = "", after: str = "") -> str:
    """A setting, or a value of it, as the user of the running program writes it; empty if he cannot.

    Args:
        setting: its dotted name.
        value: what it should be; without one, the setting alone is named.
        before: text before it, where there is a way to give it.
        after: text after it, likewise.
    """
    if not _PROGRAM:
        return f"{before}{setting}{'' if value is None else f' = {value!r}'}{after}"
    action = _PROGRAM[0].get(setting.rpartition(".")[2])
    if action is None or not action.option_strings or (action.nargs == 0 and value not in (None, action.const)):
        return ""
    return f"{before}{action.option_strings[-1]}{'' if value is None or action.nargs == 0 else f' {value}'}{after}"
