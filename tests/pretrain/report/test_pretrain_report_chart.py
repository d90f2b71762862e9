"""Charts: labels with last values, both axes, and room for names of any length."""

import re

import numpy as np
import pytest

from pretrain.report.chart import Chart, ChartSeries, spread_labels
from pretrain.report.drawings import IntervalPlot, IntervalRow

X = np.arange(1.0, 5.0)
Y = np.log([12.0, 9.0, 8.0, 7.5])


def chart(*lines: ChartSeries, **more: object) -> Chart:
    return Chart(name="c", title="Loss", lines=lines, x_title="tokens", y_title="nats", **more)  # type: ignore[arg-type]


def texts(drawing: str) -> list[str]:
    return re.findall(r"<text[^>]*>([^<]+)</text>", drawing)


def test_last_values_stand_beside_names_and_alone_without_one() -> None:
    losses = chart(
        ChartSeries("train", X, Y, "train"), ChartSeries("floor", X, Y - 1, "green", across=True), has_perplexity=True
    )
    for width in (342, 880):
        assert {"train 7.5", "floor 2.76"} <= {*texts(losses.draw(width))}
    assert losses.summary == "train: from 2.485 to 2.015; floor: 1.015 (nats), over tokens to 4."
    assert "2.01" in texts(chart(ChartSeries("", X, Y, "blue")).draw(420))
    assert "NaN" in texts(chart(ChartSeries("", X, np.where(X == 4, np.nan, Y), "blue")).draw(420))


def test_perplexities_are_an_axis_where_there_is_room() -> None:
    losses = chart(ChartSeries("train", X, Y, "train"), has_perplexity=True, height=380)
    assert {"perplexity", "10"} <= {*texts(losses.draw(880))}
    assert not {"perplexity", "10"} & {*texts(losses.draw(342))}


@pytest.mark.parametrize("width", [342, 420])
def test_a_name_that_is_longer_than_its_column_is_cut(width: int) -> None:
    names = [f"{letter}{'x' * 60}" for letter in "abcd"]
    drawn = texts(chart(*(ChartSeries(name, X, Y, "blue") for name in names), shows_last=False).draw(width))
    labels = [text for text in drawn if "xx" in text]
    assert [label[0] for label in labels] == [*"abcd"]
    assert all(label.endswith("…") and 10 < len(label) < 24 for label in labels)


def test_each_line_has_its_name_and_what_is_not_finite_is_drawn_on_a_logarithmic_axis() -> None:
    drawn = chart(
        ChartSeries("_mutant", X, Y, "blue"), ChartSeries("wild", X, np.full(len(X), np.nan), "green"), shows_last=False
    )
    assert {"\u200b_mutant", "wild"} <= {*texts(drawn.draw(420))}
    assert "NaN" in texts(chart(ChartSeries("", X, np.full(len(X), np.nan), "blue"), logarithmic=True).draw(420))


def test_marks_that_would_lie_on_one_another_are_drawn_once() -> None:
    assert spread_labels(np.array([0.0, 1.0, 9.0, 8.0, np.nan, 30.0]), 9).tolist() == [0, 9, 30]
    crowd = IntervalRow(
        "saves", points=tuple(float(n) for n in range(10_000)), crosses=tuple(float(n) for n in range(10_000))
    )
    drawn = IntervalPlot(
        name="r", title="Rows", rows=(crowd, IntervalRow("short", 5.0, ((5.0, 5.0),))), x_title="s"
    ).draw(420)
    assert 396 + 44 <= drawn.count("<use") <= 396 + 44 + 4  # a stroke a pixel, a cross for each nine; a dot
    assert {"saves", "short", "5 (5 to 5)"} <= {*texts(drawn)}


def test_fixed_ranges_hold_beyond_the_values() -> None:
    drawn = chart(ranges=((0.0, 1.0), (0.0, 8.0)), points=(X / 10, Y), diagonal=True).draw(420)
    assert {"0", "1", "5"} <= {*texts(drawn)}
    assert drawn.count("<use") == 4  # one mark for each point
