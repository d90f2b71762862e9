"""Thinned series keep their extremes, against brute force."""

import numpy as np
import pytest

from pretrain.report.chart import thin


@pytest.mark.parametrize("count", [1, 2, 7, 100, 101, 5_000])
def test_every_column_keeps_its_extremes(count: int) -> None:
    drawn = np.random.Generator(np.random.Philox(count))
    x, y = np.sort(drawn.uniform(5, 6, count)), drawn.normal(size=count)
    y[drawn.integers(count)] = 1e9  # a single peak
    shuffled = drawn.permutation(count)
    kept = thin(x[shuffled], y[shuffled], 100)
    assert len(kept.x) == len(kept.low) == len(kept.middle) == len(kept.high) <= 100
    assert (np.diff(kept.x) > 0).all()
    assert (kept.low.min(), kept.high.max()) == (y.min(), y.max())
    assert kept.has_band == (count > 100)
    if count > 100:
        column = np.minimum(((x - x[0]) / (x[-1] - x[0]) * 100).astype(int), 99)
        for at, number in enumerate(np.unique(column)):
            mine = y[column == number]
            assert (kept.low[at], kept.middle[at], kept.high[at]) == (mine.min(), np.median(mine), mine.max())


def test_what_is_not_finite_is_a_gap_and_hides_nothing_beside_it() -> None:
    x = np.arange(1000.0)
    y = np.sin(x)
    y[::7], y[500:600] = np.inf, np.nan
    kept = thin(x, y, 50)
    assert np.isnan(kept.middle[26:29]).all()
    assert np.isfinite(kept.middle[:24]).all()
    assert (np.nanmin(kept.low), np.nanmax(kept.high)) == (np.nanmin(y), y[np.isfinite(y)].max())
    assert np.isnan(thin(np.arange(3.0), np.array([1, -np.inf, 2]), 50).middle).tolist() == [False, True, False]


def test_nothing_and_the_same_place() -> None:
    assert len(thin(np.empty(0), np.empty(0), 50).x) == 0
    kept = thin(np.full(500, 3.0), np.arange(500.0), 50)
    assert (kept.x.tolist(), kept.low.tolist(), kept.high.tolist()) == ([3.0], [0.0], [499.0])
