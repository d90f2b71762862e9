"""Charts: labels with last values, both axes, room for names of any length, and extremes of thinned series."""

import re

import numpy as np
import pytest

from pretrain.report.chart import Chart, ChartSeries, spread, thin
from pretrain.report.drawings import IntervalPlot, IntervalRow

X = np.arange(1.0, 5.0)
Y = np.log([12.0, 9.0, 8.0, 7.5])
NOTHING = np.full(len(X), np.nan)


def chart(*lines: ChartSeries, **more: object) -> Chart:
    return Chart(name="c", title="Loss", lines=lines, x_title="tokens", y_title="nats", **more)  # type: ignore[arg-type]


def texts(drawing: str) -> list[str]:
    return re.findall(r"<text[^>]*>([^<]+)</text>", drawing)


def test_labels_and_second_axis_have_perplexities() -> None:
    losses = chart(
        ChartSeries("train", X, Y, "train"),
        ChartSeries("floor", X, Y - 1, "green", across=True),
        has_perplexity=True,
        height=380,
    )
    assert {"train 7.5", "floor 2.76", "perplexity", "10"} <= {*texts(losses.draw())}
    assert losses.summary == "train: from 2.485 to 2.015; floor: 1.015 (nats), over tokens to 4."


@pytest.mark.parametrize(
    ("y", "more", "last"),
    [(Y, {}, "2.01"), (np.where(X == 4, np.nan, Y), {}, "NaN"), (NOTHING, {"logarithmic": True}, "NaN")],
)
def test_last_value_stands_alone_without_a_label(y: np.ndarray, more: dict[str, object], last: str) -> None:
    assert last in texts(chart(ChartSeries("", X, y, "blue"), **more).draw())


def test_long_names_are_cut() -> None:
    names = [f"{letter}{'x' * 60}" for letter in "abcd"]
    drawn = texts(chart(*(ChartSeries(name, X, Y, "blue") for name in names), shows_last=False).draw())
    labels = [text for text in drawn if "xx" in text]
    assert [label[0] for label in labels] == [*"abcd"]
    assert all(label.endswith("…") and 10 < len(label) < 24 for label in labels)


def test_every_line_has_its_name() -> None:
    lines = ChartSeries("_mutant", X, Y, "blue"), ChartSeries("wild", X, NOTHING, "green")
    assert {"\u200b_mutant", "wild"} <= {*texts(chart(*lines, shows_last=False).draw())}


def test_overlapping_marks_are_drawn_once() -> None:
    assert spread(np.array([0.0, 1.0, 9.0, 8.0, np.nan, 30.0]), 9).tolist() == [0, 9, 30]
    times = tuple(float(number) for number in range(10_000))
    rows = (IntervalRow("saves", points=times, crosses=times), IntervalRow("short", 5.0, ((5.0, 5.0),)))
    drawn = IntervalPlot(name="r", title="Rows", rows=rows, x_title="s").draw()
    assert 376 + 42 <= drawn.count("<use") <= 376 + 42 + 4  # a stroke a pixel, a cross for each nine; a dot
    assert {"saves", "short", "5 (5 to 5)"} <= {*texts(drawn)}


def test_fixed_ranges_hold_beyond_the_values() -> None:
    points = ChartSeries("", X / 10, Y, "blue", "points")
    drawn = chart(points, ranges=((0.0, 1.0), (0.0, 8.0)), diagonal=True, shows_last=False)
    assert {"0", "1", "5"} <= {*texts(drawn.draw())}
    assert drawn.draw().count("<use") == 4  # one mark for each point
    assert drawn.summary == "4 points (nats), over tokens to 0.4."


@pytest.mark.parametrize("count", [1, 2, 7, 100, 101, 5_000])
def test_thinned_series_keep_extremes_and_medians(count: int) -> None:
    """Against brute force."""
    drawn = np.random.Generator(np.random.Philox(count))
    x, y = np.sort(drawn.uniform(5, 6, count)), drawn.normal(size=count)
    y[drawn.integers(count)] = 1e9  # a single peak
    shuffled = drawn.permutation(count)
    at, low, middle, high = thin(x[shuffled], y[shuffled], 100)
    assert len(at) <= 100
    assert (np.diff(at) > 0).all()
    assert (low.min(), high.max(), bool((high > low).any())) == (y.min(), y.max(), count > 100)
    if count > 100:
        column = np.minimum(((x - x[0]) / (x[-1] - x[0]) * 100).astype(int), 99)
        for place, number in enumerate(np.unique(column)):
            mine = y[column == number]
            assert (low[place], middle[place], high[place]) == (mine.min(), np.median(mine), mine.max())


def test_values_that_are_not_finite_are_gaps_and_hide_nothing() -> None:
    x = np.arange(1000.0)
    y = np.sin(x)
    y[::7], y[500:600] = np.inf, np.nan
    _, low, middle, high = thin(x, y, 50)
    assert np.isnan(middle[26:29]).all()
    assert np.isfinite(middle[:24]).all()
    assert (np.nanmin(low), np.nanmax(high)) == (np.nanmin(y), y[np.isfinite(y)].max())
    assert np.isnan(thin(np.arange(3.0), np.array([1, -np.inf, 2]), 50)[2]).tolist() == [False, True, False]
    assert thin(np.empty(0), np.empty(0), 50).shape == (4, 0)
    assert thin(np.full(500, 3.0), np.arange(500.0), 50)[[0, 1, 3]].tolist() == [[3.0], [0.0], [499.0]]
