"""Coverage of 95 % intervals in some of the simulations of `benchmarks.intervals`, with 200 repetitions each."""

import json

import numpy as np
import pytest

from benchmarks import intervals
from benchmarks.intervals import Case, clustered, compared, conformal, covered, few, folds

REPETITIONS = 200
ERROR = 3 * np.sqrt(0.05 * 0.95 / REPETITIONS)
"""Three Monte Carlo errors of a coverage of 95 %."""


@pytest.mark.slow
@pytest.mark.parametrize(
    "case",
    [
        clustered("regression", 3, 40),
        clustered("binary", 5, 40),
        clustered("regression", 10, 40),
        clustered("multiclass", 10, 5),
        few(10, 0.8),
        few(12, 0.5),
        folds(100, 10.0, 0.0),
        folds(100, 1e4, 0.0),
    ],
    ids=lambda case: case.name,
)
def test_intervals_hold_what_they_promise(case: Case) -> None:
    found = covered(case, REPETITIONS)
    assert found.given == 1
    assert found.held > 0.95 - ERROR
    if case.is_wide:
        assert found.width < intervals.WIDEST


@pytest.mark.slow
@pytest.mark.parametrize("in_folds", [False, True], ids=["one part", "folds"])
def test_equal_models_are_seldom_called_worse(in_folds: bool) -> None:
    found = covered(compared(100, in_folds=in_folds), REPETITIONS)
    assert found.below < 0.025 + 3 * np.sqrt(0.025 * 0.975 / REPETITIONS)


def test_numbers_are_covered_apart_from_the_labels_that_chose_the_checkpoint() -> None:
    apart, same = (covered(conformal(20, 30, apart=apart), REPETITIONS).held for apart in (True, False))
    assert apart == pytest.approx(0.9, abs=0.02)
    assert same < 0.88  # 0.83 of 20 labels that also chose among 30


def test_it_runs_to_its_last_line(capfd: pytest.CaptureFixture[str]) -> None:
    intervals.main(
        ["--repetitions", "20", "--only", "slope 0.7, 50 families of 1", "AUROC 0.8 of 10", "one part of 100"]
    )
    content = json.loads(capfd.readouterr().out.strip().splitlines()[-1])
    assert [row["work"].rpartition(": ")[::2] for row in content["rows"]] == [
        ("regression, slope 0.7, 50 families of 1", "coverage"),
        ("regression, slope 0.7, 50 families of 1", "coverage"),
        ("regression, slope 0.7, 50 families of 1", "width"),
        ("regression, slope 0.7, 50 families of 1", "has an interval"),
        ("AUROC 0.8 of 10 labels", "coverage"),
        ("AUROC 0.8 of 10 labels", "coverage"),
        ("difference of equals, one part of 100", "called worse"),
    ]
    error = content["others"]["difference of equals, one part of 100"]["error"]
    assert 0 <= error <= 0.12
