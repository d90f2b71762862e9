"""Numbers, times and rows of text in words, as a start, a proposal and a look print them.

In: plain values. Out: text. Kept: nothing.
"""

import textwrap
from collections.abc import Iterable

Row = tuple[str, str]
"""What is told, in one or two words, and the text."""
UNBROKEN = "\xa0"
"""A space at which a text is not continued on the next line."""


def aligned(rows: Iterable[Row], *, columns: int = 80, name_columns: int = 13, indent: str = "") -> list[str]:
    """Rows as lines; a long text is continued below its beginning, except where its spaces do not break."""
    lines = []
    for name, text in rows:
        first = f"{indent}{name:{name_columns}} "
        wrapped = textwrap.wrap(
            text,
            columns,
            initial_indent=first,
            subsequent_indent=" " * len(first),
            break_long_words=False,
            break_on_hyphens=False,
        )
        lines += [line.replace(UNBROKEN, " ") for line in wrapped or [first]]
    return lines


def duration(seconds: float) -> str:
    """A time as it is promised, in words, such as "50 seconds", "12 minutes", "3.5 hours", "4 days".

    What counts on the screen is `zymogen.console.progress.clock_time`.
    """
    if seconds < 100:
        return count(round(seconds), "second")
    if seconds < 100 * 60:
        return f"{seconds / 60:.0f} minutes"
    if seconds < 48 * 3600:
        return f"{seconds / 3600:.1f} hours"
    return f"{seconds / 86400:,.0f} days"


def count(number: int, name: str) -> str:
    """A number of things, such as "1 bin", "3,008 steps"."""
    return f"{number:,} {name}{'' if number == 1 else 's'}"


def format_number(number: float | None) -> str:
    """A number such as a perplexity: diverged weights may give one of hundreds of digits, or none (None)."""
    if number is None:
        return "not finite"
    return f"{number:.2f}" if number < 1e5 else f"{number:.1g}"
