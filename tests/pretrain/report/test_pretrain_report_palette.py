"""The colours can be read: the contrast of every text with what it stands on, by the formula of WCAG 2.2."""

from itertools import pairwise

import pytest

from pretrain.report.chart import COLOURS, PLACEHOLDERS, named, style_sheet
from pretrain.report.drawings import INK

TEXTS = ("ink", "muted", "train", "blue", "orange", "green", "fault")


def luminance(colour: str) -> float:
    """Relative luminance of a colour, from 0 to 1."""
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one: str, other: str) -> float:
    """Contrast ratio of two colours, from 1 to 21."""
    dark, light = sorted((luminance(one), luminance(other)))
    return (light + 0.05) / (dark + 0.05)


@pytest.mark.parametrize("form", [0, 1], ids=["light", "dark"])
def test_every_text_can_be_read(form: int) -> None:
    on_paper = {name: contrast(COLOURS[name][form], COLOURS["paper"][form]) for name in TEXTS}
    on_levels = {f"p{n}": contrast(COLOURS[ink][form], COLOURS[f"p{n}"][form]) for n, ink in enumerate(INK)}
    assert {name: ratio for name, ratio in (on_paper | on_levels).items() if ratio < 4.5} == {}


@pytest.mark.parametrize("form", [0, 1], ids=["light", "dark"])
def test_levels_differ_in_lightness(form: int) -> None:
    """So that they can be told apart without colours, in order."""
    light = [luminance(COLOURS[f"p{level}"][form]) for level in range(5)]
    assert light == sorted(light, reverse=form == 0)
    assert all((max(a, b) + 0.05) / (min(a, b) + 0.05) > 1.15 for a, b in pairwise(light))


def test_placeholders_become_variables() -> None:
    drawing = "".join(f"fill: {PLACEHOLDERS[name]};" for name in COLOURS)
    assert named(drawing) == "".join(f"fill: var(--{name});" for name in COLOURS)
    assert all(f"--{name}:{forms[form]};" in style_sheet() for name, forms in COLOURS.items() for form in (0, 1))
