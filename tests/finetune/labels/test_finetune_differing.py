"""Rows of one label that differ in another column: said, out of the ceiling, or refused where they are mutants."""

import numpy as np
import pytest

from finetune.labels.other_columns import UnusedColumns
from finetune.labels.read import TaskLabels, read_task
from finetune.labels.replicates import replicate_agreement
from support.assays.labelled_rows import Cell, as_list, read, rows_of, task

RNG = np.random.default_rng(0)


def read_beside(columns: dict[str, list[Cell]], records: list[int], **values: object) -> TaskLabels:
    from dataclasses import replace

    rows = rows_of(columns, records)
    return read_task(replace(rows, others=UnusedColumns.of(rows.table, {"y"})), task(**values))


def test_means_of_rows_that_differ_in_a_condition_say_so() -> None:
    columns: dict[str, list[Cell]] = {
        "y": ["1", "3", "5", "7", "9"],
        "pH": ["7", "9", "7", "7.0", None],
        "replicate": ["1", "2", "1", "2", "3"],  # these differ between replicates
        "measured": ["2020-01-01", "2020-01-02", "2020-01-03", "2020-01-04", "2020-01-05"],
    }
    columns = {name: [*cells, *([None] * 6 if name == "y" else cells[:1] * 6)] for name, cells in columns.items()}
    found = read_beside(columns, [0, 0, 1, 1, 1, *range(2, 8)])
    (said,) = found.said
    assert said.startswith("y: labels are means of several rows, which differ in 'pH' (1 labels); for an output of")
    assert as_list(found.labels) == [(0, 0, 2.0), (1, 0, 7.0)]
    assert found.labels.spread is not None
    assert np.isnan(found.labels.spread).tolist() == [True, False]


def test_the_ceiling_is_of_labels_whose_rows_are_replicates() -> None:
    """Rows at two temperatures agree to nothing, and lowered the ceiling of those that are replicates."""
    truth = RNG.normal(size=80)
    cells = [str(value + 0.01 * RNG.normal()) for value in truth for _ in range(2)]
    cells[80:] = [str(value) for value in RNG.normal(size=80)]
    temperature: list[Cell] = ["20"] * 80 + ["20", "60"] * 40
    records = [number // 2 for number in range(160)]
    labels = read_beside({"y": list(cells), "T": temperature}, records).labels
    found = replicate_agreement(labels, 0, np.ones(80, bool))
    assert found is not None
    assert found[0] == 40
    assert found[2] > 0.99
    mixed = replicate_agreement(read({"y": list(cells)}, records).labels, 0, np.ones(80, bool))
    assert mixed is not None
    assert mixed[2] < 0.9
    assert replicate_agreement(labels, 0, np.arange(80) < 29) is None  # too few labels


def test_a_median_beside_a_bound_leaves_the_ceiling_finite() -> None:
    """Its label is exact and has no spread; a run ended with an error of the JSON that it was written to."""
    cells: list[Cell] = [text for n in range(60) for text in (str(n), f"{n + 0.5}", "<0.1" if n % 3 == 0 else str(n))]
    labels = read({"y": cells}, [n // 3 for n in range(180)], replicates="median").labels
    found = replicate_agreement(labels, 0, np.ones(60, bool))
    assert found is not None
    assert found[0] == 40
    assert np.isfinite([found[1], found[2]]).all()


def test_rows_of_one_sequence_with_different_mutations_are_refused() -> None:
    """Six proteins with twelve mutants each became six labels."""
    columns: dict[str, list[Cell]] = {"y": ["1", "2", "3", "4"], "mut": ["A12T", "WT", "A12A", "G3S:T4A"]}
    with pytest.raises(
        ValueError, match=r"row 2 and 3: rows of one sequence have different mutations in column 'mut', 'A"
    ):
        read_beside(columns, [0, 0, 1, 2])
    assert len(read_beside(columns, [0, 1, 1, 2]).labels) == 3  # A12A is the wild type
    with pytest.raises(ValueError, match="different mutations"):
        read_beside(columns | {"y": ["yes", "yes", "no", "no"]}, [0, 0, 1, 2], type="binary")


def test_labels_that_float32_would_merge_are_refused() -> None:
    cells: list[Cell] = [f"{1e7 + 0.01 * n:.2f}" for n in range(60)]
    with pytest.raises(
        ValueError, match=r"differ too little for their size: 58 of 60 distinct .* such as 10000000\.01 as 10000000\.0;"
    ):
        read({"y": cells})
    assert len({*read({"y": [f"{1e4 + 0.01 * n:.2f}" for n in range(200)]}).labels.values.tolist()}) == 200
    assert len(read({"y": ["5", "5"]}).labels) == 2
    beside: list[Cell] = ["0", *(f"{1e5 + 0.001 * n:.3f}" for n in range(60))]  # one distant number hides nothing
    with pytest.raises(ValueError, match="differ too little for their size"):
        read({"y": beside})
    noise: list[Cell] = [repr(0.1 * n * k / k) for n in range(1, 40) for k in (1, 3, 7)]
    assert len(read({"y": noise}).labels) == len(noise)


def test_words_for_missing_in_a_column_of_classes_are_counted() -> None:
    cells: list[Cell] = ["NA", "EU", "na", "US", "", None]
    assert read({"y": cells}, type="multiclass").said == (
        "y: 2 cells mean that nothing was measured ('NA', 'na'), and are no class",
    )
    named = read({"y": ["NA", "EU"]}, type="multiclass", classes=("NA", "EU"))
    assert (len(named.labels), named.said) == (2, ())
