"""Bounds that stand in a column of their own: which texts mean that the true value is above a number, or below it.

In: texts, the settings of a task. Out: directions. Kept: nothing.
"""

from finetune.tasks.settings import TaskSettings
from zymogen.settings.section import unknown_word

USUAL = {
    **dict.fromkeys((">", ">=", "≥", ">>", "gt", "ge", "greater", "greater than", "more than", "above", "at least"), 1),
    **dict.fromkeys(("over", "lower bound", "right", "right censored", "right-censored"), 1),
    **dict.fromkeys(("<", "<=", "≤", "<<", "lt", "le", "less", "less than", "below", "at most", "under"), -1),
    **dict.fromkeys(("upper bound", "left", "left censored", "left-censored"), -1),
    **dict.fromkeys(("=", "==", "~", "≈", "exact", "none", "equal", "equals", "equal to", "measured", "uncensored"), 0),
    **dict.fromkeys(("0", "no", "false", "n", "f", "na", "n/a", "nan", "-"), 0),
}
"""Text in lower case -> 1: the true value is above the number, -1: below, 0: the number is exact."""


def censoring_of(text: str, settings: TaskSettings) -> int:
    """1 where the true value is above the number, -1 below, 0 where it is exact.

    Raises:
        ValueError: the text is none of the words.
    """
    word = normalize(text)
    given = dict.fromkeys(settings.lower_bounds, 1) | dict.fromkeys(settings.upper_bounds, -1)
    found = given.get(text, USUAL.get(word))
    if found is None:
        said = unknown_word(f"bound of {settings.name!r}", text, [*given, *USUAL])
        raise ValueError(f"{said}; name it in tasks.lower_bounds or tasks.upper_bounds")
    return found


def normalize(text: str) -> str:
    """A text in lower case without quotes, as ChEMBL has '='."""
    return text.strip("'\" ").casefold()
