"""Intervals: a number of steps, or a time in words."""

import re

import pytest

from zymogen.settings.interval import Interval, interval


@pytest.mark.parametrize(
    ("value", "found"),
    [
        (1, (1, None)),
        (250, (250, None)),
        ("30 s", (None, 30.0)),
        ("10 min", (None, 600.0)),
        ("10min", (None, 600.0)),
        (" 1.5 h ", (None, 5400.0)),
        ("0.5 s", (None, 0.5)),
    ],
)
def test_steps_or_a_time(value: int | str, found: tuple[int | None, float | None]) -> None:
    assert interval("run.log_every", value) == Interval(*found)


@pytest.mark.parametrize("value", [0, -1, "0 s", "10", "10 m", "ten min", "-5 s", "1e3 s", "", "1 h 30 min", "inf s"])
def test_anything_else_is_one_error(value: int | str) -> None:
    with pytest.raises(ValueError, match=f"^run.log_every is {re.escape(repr(value))}; it must be [^\n]*'10 min'"):
        interval("run.log_every", value)
