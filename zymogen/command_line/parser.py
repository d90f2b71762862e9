"""Parsers of commands: `~` in any word, URLs without their secrets, and errors in the words of all other errors.

In: words of a command line. Out: a namespace. State: the options by which errors name
settings (`zymogen.settings.origin`).
"""

import argparse
import difflib
import re
import sys
from collections.abc import Callable
from typing import Any, NoReturn

from zymogen.console.safe_text import redact_later
from zymogen.settings.origin import COMMAND_LINE, use_options
from zymogen.settings.section import expanded

_OF_LAUNCHER = re.compile(
    r"unrecognized arguments: --(?:mixed_precision|num_(?:processes|machines)|config_file|machine_rank|main_process_)"
)


class PathParser(argparse.ArgumentParser):
    """A parser whose words may have the home folder as ``~`` where a shell leaves it: ``--output=~/x``, ``a.b=~/x``.

    URLs lose their secrets (`zymogen.console.safe_text`), and errors name settings by its options
    (`zymogen.settings.origin`).
    """

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parse words after `~` was replaced; those of the process lose their secrets, too, as trackers send them.

        Raises:
            ValueError: a URL holds a user or a password.
        """
        use_options(self)
        words = [_prepared(word) for word in (sys.argv[1:] if args is None else args)]
        if args is None:
            sys.argv[1:] = words
        return super().parse_known_args(words, namespace)

    def nearest_option(self, message: str) -> str:
        """``did you mean --NAME?`` for the first option that an error of argparse's names as unknown, or nothing."""
        unknown = re.match(r"unrecognized arguments:.*?(--[a-z-]+)", message)
        near = difflib.get_close_matches(unknown[1], self._option_string_actions, 1, 0.7) if unknown else []
        return f"did you mean {near[0]}?" if near else ""

    def error(self, message: str) -> NoReturn:
        """End with the message, and the option that was probably meant."""
        super().error("; ".join(filter(None, (message, self.nearest_option(message)))))


def _prepared(word: str) -> str:
    name, path = re.fullmatch(r"([\w.-]+=)?(.*)", word, re.S).groups("")  # type: ignore[union-attr]
    return redact_later(f"{name}{expanded(path)}", "on the command line")


class CommandParser(PathParser):
    """A parser whose errors are reported as all others are."""

    def error(self, message: str) -> NoReturn:
        """Refuse the command line.

        Raises:
            ValueError: always.
        """
        setting = re.fullmatch(r"unrecognized arguments: --([a-z_]+\.\S+)(?: .*)?", message)
        remedy = self.nearest_option(message) or "--help lists what may be given"
        remedy = f"a setting has no dashes and one '=': {setting[1]}" if setting else remedy
        remedy = "accelerate launch takes it, before -m" if _OF_LAUNCHER.match(message) else remedy
        raise ValueError(f"{COMMAND_LINE}: {message}; {remedy}")


class SettingsHelp(argparse.Action):
    """The option `--help-settings [SECTION]`, which prints the settings of a recipe and ends.

    Args:
        text: returns what is printed of a section; of "" all settings.
        rest: as of any option.
    """

    def __init__(self, *, text: Callable[[str], str], **rest: Any) -> None:
        super().__init__(nargs="?", default=argparse.SUPPRESS, **rest)
        self._text = text

    def __call__(self, parser: argparse.ArgumentParser, _: Any, section: Any, option: str | None = None) -> None:
        """Print them."""
        print(self._text(section or ""))
        parser.exit()


def positive(text: str) -> int:
    """A whole number from 1 on, as the type of an option.

    Raises:
        argparse.ArgumentTypeError: it is none.
    """
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"got {text!r}; it takes a whole number from 1 on")
    return int(text)
