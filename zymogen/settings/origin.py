"""Where the values of a recipe were written, so that an error sends its reader to the right place.

In: the path of a recipe, the overrides, the parser of the command line. Out: the text of an error, with the place: a
setting as a recipe names it, or the option of the program that is running. Kept: the options of the program, in this
process.
"""

import argparse
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

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


COMMAND_LINE = "on the command line"

_MOST_SHOWN = 100
"""Letters of an override that are shown."""


@dataclass(frozen=True)
class SettingOrigin:
    """A recipe file, and the overrides on top of it."""

    file: str
    """`COMMAND_LINE` where there is none."""
    overrides: Sequence[str] = ()

    @cached_property
    def _given(self) -> Mapping[str, str]:
        """Dotted name -> the last override of that name."""
        return {override.partition("=")[0]: override for override in self.overrides}

    def error(self, message: str, *names: str) -> str:
        """`message`, with where its reader finds the mistake before it: in the file, or on the command line.

        Args:
            message: what is wrong.
            names: the setting that it is about; of several, it is about those that it names.
        """
        about = set(names)
        if len(names) > 1:
            about = {name for name in (*names, *self._given) if _mentions(message, name)}
        written = {self._override(name) for name in about}
        written |= {override for given, override in self._given.items() if any(_of_a_table(given, n) for n in about)}
        if self.file == COMMAND_LINE:  # there is no file
            written.discard(None)
        shown = ", ".join(_shown(override) for override in self.overrides if override in written)
        if not shown:
            return f"{self.file}: {message}"
        if None not in written:
            return f"{COMMAND_LINE}, {shown}: {message}"
        return f"{self.file} with {shown} {COMMAND_LINE}: {message}"

    def require_quotes(self, name: str, value: str) -> None:
        """Refuse a list of the command line whose quotes the shell has taken away.

        Raises:
            ValueError: the value of the setting `name`, a list, is ``[a,b]``, which would pass for one string.
        """
        if name in self._given and value.startswith("[") and value.endswith("]"):
            first = value.strip("[]").partition(",")[0]
            raise ValueError(
                self.error(
                    f"{name} is a list without quotes, as a shell takes them away; write {name}={first} for one, or "
                    f'\'{name}=["a", "b"]\' with the single quotes for several',
                    name,
                )
            )

    def _override(self, name: str) -> str | None:
        """The override that gave a setting its value, itself, as part of a table, or by what is in its section."""
        for given, override in self._given.items():
            if given == name or name.startswith(f"{given}.") or given.startswith(f"{name}."):
                return override
        return None


_RECIPE: list[SettingOrigin] = []
"""Empty, or one entry: the origin of the recipe that was read last."""


def use_origin(origin: SettingOrigin) -> None:
    """Name this recipe in errors about options of own classes, which are checked when these are loaded."""
    _RECIPE[:] = [origin]


def origin_of_options() -> SettingOrigin:
    """Return the origin of the recipe that was read last; without any, the command line."""
    return _RECIPE[0] if _RECIPE else SettingOrigin(COMMAND_LINE)


def _of_a_table(given: str, name: str) -> bool:
    """Whether an override gives a setting of one of several tables, as ``tasks.NAME.weight`` gives a tasks.weight."""
    section, _, last = name.rpartition(".")
    return bool(section) and given.startswith(f"{section}.") and given.endswith(f".{last}") and given != name


def _mentions(message: str, name: str) -> bool:
    """Whether a text names a setting, with its section or, before its value, without."""
    last = name.rpartition(".")[2]
    return bool(re.search(rf"(?<![\w.]){re.escape(name)}(?![\w.]*\w)|(?<![\w.]){re.escape(last)} is\b", message))


def _shown(override: str) -> str:
    quoted = shlex.quote(override)
    return quoted if len(quoted) <= _MOST_SHOWN else f"{quoted[: _MOST_SHOWN - 3]}..."
