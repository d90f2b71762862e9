"""Several measurements of one thing become one label; how well they agree is the ceiling of a metric."""

import numpy as np
import pytest

from finetune.labels.labels import ABOVE, BELOW, EXACT, Labels
from finetune.labels.objectives import counts_by_part, objectives
from finetune.labels.replicates import replicate_agreement
from support.assays.labelled_rows import Cell, as_list, read


@pytest.mark.parametrize(("how", "value"), [("mean", 3.0), ("median", 2.0)])
def test_rows_of_one_sequence_become_one_label(how: str, value: float) -> None:
    columns: dict[str, list[Cell]] = {"y": ["6", "5", "1", "2", None]}
    labels = read(columns, [1, 0, 1, 1, 0], replicates=how).labels
    assert as_list(labels) == [(0, 0, 5.0), (1, 0, value)]
    assert labels.replicates is not None
    assert labels.replicates.tolist() == [1, 3]
    assert labels.spread is not None
    assert labels.spread.tolist()[1] == np.float32(np.std([6, 1, 2], ddof=1))
    assert np.isnan(labels.spread[0])


def test_replicates_as_columns() -> None:
    labels = read({"r1": ["1", "4"], "r2": ["3", None]}, columns=("r*",), columns_are="replicates").labels
    assert as_list(labels) == [(0, 0, 2.0), (1, 0, 4.0)]
    assert labels.replicates is not None
    assert labels.replicates.tolist() == [2, 1]


@pytest.mark.parametrize(
    ("how", "cells", "expected"),
    [
        ("mean", ["<4", "8"], (6.0, BELOW)),  # below 4 and exactly 8: the mean is below 6
        ("mean", [">4", ">8"], (6.0, ABOVE)),
        ("median", ["<1", "3", "5"], (3.0, EXACT)),  # 3, however far below 1 the first one is
        ("median", ["<4", "3", "5"], (4.0, BELOW)),  # 3 if the first one is below 3
        ("median", [">4", ">8"], (6.0, ABOVE)),
    ],
)
def test_censored_replicates(how: str, cells: list[Cell], expected: tuple[float, int]) -> None:
    labels = read({"y": [*cells, "<9"]}, [*[0] * len(cells), 1], replicates=how).labels
    assert as_list(labels) == [(0, 0, *expected), (1, 0, 9.0, BELOW)]
    assert labels.spread is not None
    assert np.isnan(labels.spread).tolist() == [True, True]


@pytest.mark.parametrize(
    ("cells", "values", "said"),
    [
        (["1", "2", "2"], {"replicates": "refuse"}, r"t\.csv: row 2, t\.csv: row 4: several measurements of 'y'"),
        (["<1", "2", ">3"], {}, r"row 2, t\.csv: row 4: one measurement is below and another above a number of 'y'"),
        (["yes", "yes", "no"], {"type": "binary"}, r"row 2, t\.csv: row 4: different classes of 'y' for one sequence"),
    ],
)
def test_replicates_that_cannot_be_one_label_are_refused(cells: list[Cell], values: dict[str, str], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        read({"y": cells}, [0, 1, 0], **values)


# Agreement ----------------------------------------------------------------------------------------


def labels_of(groups: list[list[float]]) -> Labels:
    cells = [str(value) for group in groups for value in group]
    return read({"y": list(cells)}, [record for record, group in enumerate(groups) for _ in group]).labels


def test_icc_is_that_of_shrout_and_fleiss() -> None:
    """Their table 2, six targets by four judges: ICC(1,1) = 0.17, ICC(1,4) = 0.44 (table 4)."""
    table = [[9, 2, 5, 8], [6, 1, 3, 2], [8, 4, 6, 8], [7, 1, 2, 6], [10, 5, 6, 9], [6, 2, 4, 7]]
    found = replicate_agreement(labels_of([[float(v) for v in row] for row in table]), 0, np.ones(6, bool), 2)
    assert found is not None
    assert found[0] == 6
    assert found[1] == pytest.approx(0.1657, abs=5e-5)
    assert found[2] == pytest.approx(np.sqrt(0.4428), abs=5e-5)


def test_the_ceiling_is_what_the_truth_reaches() -> None:
    rng = np.random.default_rng(3)
    truth = rng.normal(size=4000)
    groups = [list(value + 0.8 * rng.normal(size=1 + i % 4)) for i, value in enumerate(truth)]
    labels = labels_of(groups)
    found = replicate_agreement(labels, 0, np.ones(4000, bool))
    assert found is not None
    assert found[1] == pytest.approx(1 / (1 + 0.64), abs=0.03)  # standard error 0.012
    # The reached correlation differs from the mean of reliabilities by the labels' unequal variances as well.
    assert found[2] == pytest.approx(np.corrcoef(truth, labels.values)[0, 1], abs=0.02)


def test_there_is_no_agreement_without_replicates() -> None:
    labels = labels_of([[1.0, 2.0], [3.0, 4.0], [5.0]])
    assert replicate_agreement(labels, 0, np.array([True, True, True]), 2) is not None
    assert replicate_agreement(labels, 0, np.array([True, False, True]), 2) is None  # one label of several measurements
    assert replicate_agreement(labels_of([[1.0], [2.0]]), 0, np.ones(2, bool), 2) is None
    assert replicate_agreement(labels_of([[1.0, 1.0], [1.0, 1.0]]), 0, np.ones(2, bool), 2) is None


# Objectives ---------------------------------------------------------------------------------------


def test_training_labels_alone_decide() -> None:
    columns: dict[str, list[Cell]] = {"a": ["1", "3", "100"], "b": [None, "5", "7"], "c": [None, None, "9"]}
    found = read(columns, columns=("a", "b", "c"))
    (objective,) = objectives([found], np.array([True, True, False]))
    assert objective.mean.tolist() == [2.0, 5.0, 0.0]
    assert objective.std.tolist() == [1.0, 1.0, 1.0]  # of one label, and of none
    assert objective.num_labels is not None
    assert objective.num_labels.tolist() == [2, 1, 0]
    assert (objective.outputs, objective.width, objective.class_counts.shape) == (("a", "b", "c"), 3, (3, 0))
    parts = {"train": np.array([True, True, False]), "test": np.array([False, False, True])}
    counts = counts_by_part(found, parts)
    assert {part: each.tolist() for part, each in counts.items()} == {"train": [2, 1, 0], "test": [1, 1, 1]}


def test_bounds_do_not_move_the_mean_where_numbers_are_exact() -> None:
    (objective,) = objectives([read({"y": ["1", "5", ">1000"]})], np.ones(3, bool))
    assert (objective.mean.tolist(), objective.std.tolist()) == ([3.0], [2.0])
    (objective,) = objectives([read({"y": [">1", ">5"]})], np.ones(2, bool))
    assert (objective.mean.tolist(), objective.std.tolist()) == ([3.0], [2.0])


def test_classes_are_counted() -> None:
    found = read({"y": ["a", "b", "a", "c"]}, type="multiclass")
    (objective,) = objectives([found], np.array([True, True, True, False]))
    assert objective.class_counts.tolist() == [[2, 1, 0]]
    assert objective.is_trained.tolist() == [[True, True, False]]
    assert (objective.width, objective.mean.tolist(), objective.std.tolist()) == (3, [0.0], [1.0])


def test_a_task_that_cannot_be_learned_is_refused() -> None:
    binary = read({"y": ["yes", "yes", "no"]}, type="binary")
    train = np.array([True, True, False])
    with pytest.raises(ValueError, match="all 2 training labels of 'y' are 'yes': there is nothing to tell apart"):
        objectives([binary], train)
    with pytest.raises(ValueError, match="no training record has a label of 'y', and 1 of other parts"):
        objectives([read({"y": [None, None, "3"]})], train)


def test_one_of_many_tasks_may_have_one_class() -> None:
    found = read({"a": ["1", "1"], "b": ["0", "1"]}, columns=("a", "b"), type="multilabel")
    (objective,) = objectives([found], np.ones(2, bool))
    assert objective.class_counts.tolist() == [[0, 2], [1, 1]]
