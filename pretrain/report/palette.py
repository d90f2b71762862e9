"""The colours of charts and pages, in a light and a dark form.

In: a name. Out: a CSS variable; a placeholder where a library takes only hexadecimal colours. Kept: nothing.

The hues are those of Okabe and Ito (2008), which readers who are colour-blind can tell apart, darkened or lightened
until text in them has a contrast of 4.5 with the paper.
"""

import re

COLOURS: dict[str, tuple[str, str]] = {
    "paper": ("#ffffff", "#15181d"),
    "ink": ("#1c2127", "#e9ebee"),
    "muted": ("#5b6470", "#a4adb8"),
    "grid": ("#e7e9ec", "#2b3038"),
    "train": ("#68717c", "#98a1ad"),
    "blue": ("#005f9e", "#6db8f2"),
    "orange": ("#a84a00", "#f0a25a"),
    "green": ("#00734f", "#57cfa6"),
    "fault": ("#a01f5c", "#f490bb"),
    # Probability of a residue: five steps from the paper to the darkest, or the lightest.
    "p0": ("#f3f4f6", "#22272e"),
    "p1": ("#cfe0f1", "#203d58"),
    "p2": ("#9cc4e6", "#27608f"),
    "p3": ("#2b74b3", "#7dbcec"),
    "p4": ("#0a4479", "#cfe6fa"),
}
"""Light and dark form of each colour."""
_PLACEHOLDERS = {name: f"#0101{number:02x}" for number, name in enumerate(COLOURS, 16)}


def placeholder(name: str) -> str:
    """A hexadecimal colour that stands for `name` until `named` puts the variable in its place."""
    return _PLACEHOLDERS[name]


def named(drawing: str) -> str:
    """The drawing with CSS variables instead of placeholders."""
    by_colour = {colour: f"var(--{name})" for name, colour in _PLACEHOLDERS.items()}
    return re.sub("|".join(by_colour), lambda found: by_colour[found[0]], drawing)


def style_sheet() -> str:
    """CSS that gives the variables their values: on paper always the light ones."""

    def values(form: int) -> str:
        return "".join(f"--{name}:{forms[form]};" for name, forms in COLOURS.items())

    dark = f"@media screen and (prefers-color-scheme:dark){{:root{{{values(1)}}}}}"
    return f":root{{color-scheme:light dark;{values(0)}}}{dark}"
