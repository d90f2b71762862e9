"""Bounds in a column of their own, and labels of rows that contradict each other."""

import numpy as np
import pytest

from finetune.labels.labels import ABOVE, BELOW, EXACT
from support.assays.labelled_rows import Cell, as_list, read


def test_a_column_of_bounds_censors_the_numbers_of_its_rows() -> None:
    columns: dict[str, list[Cell]] = {
        "y": ["1", "2", ">3", "4", "5", None],
        "sign": [">", "less than", "=", None, "'<='", "odd"],
    }
    found = read(columns, bound_column="sign")
    assert found.labels.values.tolist() == [1, 2, 3, 4, 5]
    assert found.labels.censoring is not None
    assert found.labels.censoring.tolist() == [ABOVE, BELOW, ABOVE, EXACT, BELOW]


def test_own_words_of_bounds_and_a_transform_turn_them() -> None:
    columns: dict[str, list[Cell]] = {"y": ["10", "100"], "limit": ["upper", "no"]}
    found = read(columns, bound_column="limit", lower_bounds=("upper",), transform="p", unit="nM")
    assert np.allclose(found.labels.values, [8, 7])
    assert found.labels.censoring is not None
    assert found.labels.censoring.tolist() == [BELOW, EXACT]


def test_an_unknown_bound_is_an_error_with_its_row() -> None:
    columns: dict[str, list[Cell]] = {"y": ["10", "100"], "limit": ["=", "upper"]}
    with pytest.raises(ValueError, match=r"row 3.*column 'y': bound of 'y' is 'upper'.*tasks.lower_bounds"):
        read(columns, bound_column="limit")


@pytest.mark.parametrize(
    ("kind", "cells", "labels"),
    [
        ("binary", ["0", "1", "1", "1", "0"], [(1, 0, 1.0), (2, 0, 0.0)]),
        ("multiclass", ["a", "b", "b", "b", "a"], [(1, 0, 1.0), (2, 0, 0.0)]),
        ("regression", [">4", "<1", "2", "3", "3"], [(1, 0, 2.5), (2, 0, 3.0)]),
    ],
)
def test_rows_that_contradict_each_other_are_left_out_where_that_is_chosen(
    kind: str, cells: list[Cell], labels: list[tuple[int, int, float]]
) -> None:
    found = read({"y": cells}, [0, 0, 1, 1, 2], type=kind, replicates="leave_out")
    assert as_list(found.labels) == labels
    assert "y: labels left out, as rows of one sequence contradict each other: 1" in found.said


def test_classes_have_no_bounds() -> None:
    with pytest.raises(ValueError, match=r"tasks\.y\.bound_column is 'sign'; only a task of numbers reads it"):
        read({"y": ["0", "1"], "sign": ["=", "="]}, type="binary", bound_column="sign")
