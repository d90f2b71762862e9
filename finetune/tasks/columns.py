"""The columns of a task: names as they stand, and patterns such as ``CHEMBL*``.

In: the columns of a table, what a recipe names. Out: names of columns. Kept: nothing.
"""

import difflib
import re
from collections.abc import Sequence

from finetune.tasks.settings import TaskSettings
from zymogen.settings.section import listed

_SHOWN, _NAME = 20, 40


def columns_of(settings: TaskSettings, columns: Sequence[str], place: str) -> tuple[str, ...]:
    """The columns of a task, each once, in the order in which they are named and then in that of the table.

    A name that is no column is a pattern if it has a ``*`` (any text) or a ``?`` (one character).

    Args:
        settings: of the task.
        columns: of the table or tables.
        place: what the tables are called in errors.

    Raises:
        ValueError: a column is not there, with the nearest one, or a pattern fits none.
    """
    found: dict[str, None] = {}
    for name in settings.columns or (settings.name,):
        # Only * and ? are special: column names such as "IC50 [nM]" have brackets.
        pattern = "".join({"*": ".*", "?": "."}.get(letter, re.escape(letter)) for letter in name)
        matching = [name] if name in columns else [each for each in columns if re.fullmatch(pattern, each, re.S)]
        if not matching:
            raise ValueError(no_such_column(name, columns, f"{place}: task {settings.name!r}"))
        found |= dict.fromkeys(matching)
    return tuple(found)


def outputs_of(settings: TaskSettings, columns: Sequence[str]) -> tuple[str, ...]:
    """Names of a task's outputs: its columns, or its own name if these are one or are replicates."""
    if len(columns) == 1 or settings.columns_are == "replicates":
        return (settings.name,)
    return tuple(columns)


def no_such_column(name: str, columns: Sequence[str], place: str) -> str:
    """Text of an error: no column has this name, the nearest one, and those that are there."""
    near = difflib.get_close_matches(name, columns, 1, cutoff=0.5) or [
        column for column in columns if column.strip().casefold() == name.strip().casefold()
    ]
    nearest = f"the nearest is {near[0]!r}; " if near else ""
    what = "no column fits the pattern" if {*name} & {"*", "?"} else "there is no column"
    return (
        f"{place}: {what} {name!r}; {nearest}its columns are {listed([repr(each[:_NAME]) for each in columns], _SHOWN)}"
    )
