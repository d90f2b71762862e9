"""From text to labels: what is missing has none, every number finds its record, and errors name row and column."""

import numpy as np
import pytest

from finetune.bundle.columns import cell as predicted_cell
from finetune.labels.labels import ABOVE, BELOW, EXACT
from finetune.labels.locate import TableRows
from finetune.labels.read import read_task
from finetune.tables.proteins import proteins_of
from finetune.tables.settings import TableSettings, TooLong
from finetune.tables.table import concatenate_tables
from support.assays.labelled_rows import Cell, as_list, read, rows_of, task


def test_numbers_classes_and_what_is_missing() -> None:
    columns = {"a": ["0", " ", None, "1.5"], "b": ["NA", "-2", "n/a", "nd"]}
    found = read(columns, columns=("a", "b"))
    assert (found.outputs, found.classes) == (("a", "b"), ())
    assert as_list(found.labels) == [(0, 0, 0.0), (1, 1, -2.0), (3, 0, 1.5)]  # an observed zero is there
    assert found.labels.pointers.tolist() == [0, 1, 2, 2, 3]
    assert (found.labels.censoring, found.labels.replicates, found.labels.positions) == (None, None, None)
    assert [array.dtype.name for array in (found.labels.outputs, found.labels.values)] == ["int32", "float32"]


def test_yes_and_no_say_which_is_positive() -> None:
    found = read({"y": ["no", "yes", "", "no"]}, type="binary")
    assert as_list(found.labels) == [(0, 0, 0.0), (1, 0, 1.0), (3, 0, 0.0)]
    assert found.classes == ("no", "yes")
    assert found.said == ("y: 'yes' is positive, 'no' is negative",)


def test_minus_is_missing_unless_it_stands_beside_plus() -> None:
    assert as_list(read({"y": ["+", "-", "NA"]}, type="binary").labels) == [(0, 0, 1.0), (1, 0, 0.0)]
    assert as_list(read({"y": ["1", "-", "0"]}, type="binary").labels) == [(0, 0, 1.0), (2, 0, 0.0)]
    named = read({"y": ["x", "-"]}, type="binary", classes=("-", "x"))
    assert as_list(named.labels) == [(0, 0, 1.0), (1, 0, 0.0)]


def test_several_columns_of_one_objective_share_its_classes() -> None:
    found = read({"a": ["M", "S"], "b": ["S", None]}, columns=("a", "b"), type="multiclass")
    assert (found.classes, as_list(found.labels)) == (("M", "S"), [(0, 0, 0.0), (0, 1, 1.0), (1, 0, 1.0)])


def test_bounds_turn_with_the_sign() -> None:
    numbers: list[Cell] = [">100", "< 0.1", "1000"]
    plain = read({"y": numbers})
    assert as_list(plain.labels) == [(0, 0, 100.0, ABOVE), (1, 0, np.float32(0.1), BELOW), (2, 0, 1000.0, EXACT)]
    turned = read({"y": numbers}, transform="p", unit="nM")
    assert as_list(turned.labels) == [(0, 0, 7.0, BELOW), (1, 0, 10.0, ABOVE), (2, 0, 6.0, EXACT)]
    assert as_list(read({"y": numbers}, transform="log10").labels)[1:] == [(1, 0, -1.0, BELOW), (2, 0, 3.0, EXACT)]


def test_units_of_rows_and_of_cells_become_one() -> None:
    columns = {"y": ["1", "10", "0.01"], "u": ["uM", "nM", "mM"]}
    found = read(columns, transform="p", unit="nM", unit_column="u")
    assert as_list(found.labels) == [(0, 0, 6.0), (1, 0, 8.0), (2, 0, 5.0)]
    assert found.unit == "nM"
    plain = read({"y": ["1", "2000", "3"], "u": ["uM", "nM", "uM"]}, unit_column="u")  # most rows have uM
    assert (plain.unit, as_list(plain.labels)) == ("uM", [(0, 0, 1.0), (1, 0, 2.0), (2, 0, 3.0)])
    in_cells = read({"y": ["1 uM", "500 nM", "2 uM"]}, transform="p")
    assert (in_cells.unit, in_cells.labels.values.tolist()) == (
        "uM",
        [6.0, np.float32(6 - np.log10(0.5)), np.float32(6 - np.log10(2))],
    )


def test_rows_without_a_record_are_not_read() -> None:
    rows = rows_of({"y": ["1", "what", "3"]}, [0, -1, 1])
    assert as_list(read_task(rows, task()).labels) == [(0, 0, 1.0), (1, 0, 3.0)]


def together(*tables: TableRows) -> TableRows:
    """The rows of several tables, which all have a column x, as rows of one."""
    bases = np.cumsum([0, *(each.num_records for each in tables)])
    records = np.concatenate([each.records + base for each, base in zip(tables, bases, strict=False)])
    table = concatenate_tables([each.table for each in tables], TableSettings(sequence=("x",)))
    return TableRows(table, records, int(bases[-1]))


def test_records_and_classes_are_those_of_all_tables() -> None:
    first, second = rows_of({"y": ["b"], "x": ["1"]}), rows_of({"x": ["3", "4"]}, name="no_y.csv")
    third = rows_of({"y": ["a", "b"], "x": ["5", "6"]}, [1, 0], name="u.csv")
    found = read_task(together(first, second, third), task(type="multiclass"))
    assert (found.classes, as_list(found.labels)) == (("a", "b"), [(0, 0, 1.0), (3, 0, 1.0), (4, 0, 0.0)])
    wrong = rows_of({"y": ["1", "b"], "x": ["2", "3"]}, name="u.csv")
    with pytest.raises(ValueError, match=r"^u\.csv: row 3, column 'y': 'b' is no number"):
        read_task(together(rows_of({"y": ["1"], "x": ["1"]}), wrong), task())


@pytest.mark.parametrize(
    ("cells", "values", "said"),
    [
        (["1", "high"], {}, r"t\.csv: row 3, column 'y': 'high' is no number; correct it, or add it to tasks\.missing"),
        (["1", "0"], {"transform": "log10"}, r"row 3, column 'y': '0' is not above 0 and has no logarithm"),
        (["1", "-2", "-3"], {"transform": "log10"}, r"'-2' \(1 more such label in this column\) is not above 0"),
        (["1"], {"transform": "p"}, r"tasks: the unit of 'y' is '', which is no molar unit"),
        (["1"], {"transform": "p", "unit": "ug/ml"}, "is 'ug/ml', which is no molar unit"),
        (["1e39"], {}, r"row 2, column 'y': '1e39' is larger than a label can be, 3\.4e\+38"),
        (
            ["low", "hgih"],
            {"type": "ordinal", "classes": ("low", "high")},
            "row 3, column 'y': the class of 'y' is 'hgih'; the nearest is 'high'",
        ),
        (["0", "1", "0.3"], {"type": "binary"}, r"'y' is of type binary and its labels are '0', '1', '0\.3'"),
        (["1", "2"], {"unit_column": "v"}, "unit_column is 'v'"),
    ],
)
def test_bad_labels_are_refused(cells: list[Cell], values: dict[str, object], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        read({"y": cells}, **values)


@pytest.mark.parametrize(
    ("numbers", "units", "said"),
    [
        (["1", "2"], ["nM", None], "row 3, column 'y': the label has no unit in column 'u'"),
        (["1", "2"], ["nM", "ug/ml"], r"row 3, column 'y': the unit is 'ug/ml', and that of 'y' is 'nM'; convert"),
        (["1 nM", "2 nM"], ["nM", "nM"], r"its cells have the unit 'nM', and 'y' has a unit_column; remove one"),
    ],
)
def test_units_that_do_not_fit_are_refused(numbers: list[Cell], units: list[Cell], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        read({"y": numbers, "u": units}, unit_column="u")


# Residues -----------------------------------------------------------------------------------------


def residue_labels(cells: list[Cell], lengths: list[int], **values: object) -> list[tuple[object, ...]]:
    linkers = values.pop("linkers", None)
    rows = rows_of({"y": cells}, lengths=lengths, linkers=linkers)  # type: ignore[arg-type]
    labels = read_task(rows, task(level="residue", **values)).labels
    assert labels.positions is not None
    return [(*label, position) for label, position in zip(as_list(labels), labels.positions.tolist(), strict=True)]


def test_a_letter_for_each_residue() -> None:
    found = residue_labels(["HE-C", None, "-H"], [4, 3, 2], type="multiclass")
    assert found == [(0, 0, 2.0, 0), (0, 0, 1.0, 1), (0, 0, 0.0, 3), (2, 0, 2.0, 1)]


def test_numbers_between_separators() -> None:
    assert residue_labels(["0.5 - >2"], [3]) == [(0, 0, 0.5, EXACT, 0), (0, 0, 2.0, ABOVE, 2)]
    assert residue_labels(["1,,3"], [3]) == [(0, 0, 1.0, 0), (0, 0, 3.0, 2)]
    assert residue_labels(["helix;strand"], [2], type="multiclass") == [(0, 0, 0.0, 0), (0, 0, 1.0, 1)]


def test_residue_predictions_are_read_as_labels() -> None:
    written = predicted_cell([0.25, None, 3.0, -1.5])
    assert residue_labels([written], [4]) == [
        (0, 0, 0.25, 0),
        (0, 0, 3.0, 2),
        (0, 0, -1.5, 3),
    ]
    assert residue_labels([predicted_cell(["E", "H"])], [2], type="multiclass") == [(0, 0, 0.0, 0), (0, 0, 1.0, 1)]


def test_each_label_of_a_list_is_an_output() -> None:
    cells: list[Cell] = ["Nucleus; Membrane", "Membrane", '["Cytosol", "Nucleus"]', None, "NA", "Cytosol;Membrane"]
    found = read({"y": cells}, type="multilabel", columns_are="lists")
    assert (found.outputs, found.classes) == (("Cytosol", "Membrane", "Nucleus"), ("no", "yes"))
    table = {0: (0, 1, 1), 1: (0, 1, 0), 2: (1, 0, 1), 5: (1, 1, 0)}
    assert as_list(found.labels) == [
        (row, output, float(value)) for row, values in table.items() for output, value in enumerate(values)
    ]
    with pytest.raises(ValueError, match="'y' has no label: every cell of its column is missing"):
        read({"y": ["NA", ""]}, type="multilabel", columns_are="lists")
    for wrong in ({"type": "multiclass"}, {"classes": ("a", "b")}, {"columns": ("y", "z")}, {"level": "residue"}):
        with pytest.raises(ValueError, match="lists are one column of a multilabel task of whole sequences"):
            task(**{"type": "multilabel", "columns_are": "lists", **wrong})  # type: ignore[arg-type]


def test_lists_of_several_tables_have_the_outputs_of_all() -> None:
    rows = together(rows_of({"y": ["A; B", "A"], "x": ["1", "2"]}), rows_of({"y": ["C"], "x": ["3"]}, name="u.csv"))
    found = read_task(rows, task(type="multilabel", columns_are="lists"))
    assert found.outputs == ("A", "B", "C")
    assert [value for *_, value in as_list(found.labels)] == [1, 1, 0, 1, 0, 0, 0, 0, 1]


def test_a_linker_has_no_label_whether_or_not_a_cell_counts_it() -> None:
    linkers = {0: (2, 4)}
    expected = [(0, 0, 0.0, 0), (0, 0, 1.0, 1), (0, 0, 1.0, 4)]
    assert residue_labels(["011"], [5], type="binary", linkers=linkers) == expected
    assert residue_labels(["01001"], [5], type="binary", linkers=linkers) == expected


def test_residue_strings_of_wrong_length_are_refused() -> None:
    with pytest.raises(
        ValueError, match=r"t\.csv: row 3, column 'y': 4 labels for a sequence of 5 residues; write one"
    ):
        residue_labels(["HH", "HHHH"], [2, 5], type="multiclass")


def test_lists_of_residue_numbers() -> None:
    settings = task(type="binary", level="residue", residue_numbers="from_1")
    labels = read_task(rows_of({"y": ["1, 3", "[]", None]}, lengths=[3, 2, 4]), settings).labels
    assert labels.values.tolist() == [1, 0, 1, 0, 0]
    from_0 = task(type="binary", level="residue", residue_numbers="from_0")
    assert read_task(rows_of({"y": ["0;2"]}, lengths=[3]), from_0).labels.values.tolist() == [1, 0, 1]
    for text, said in (
        ("0", "'0' is none of 3 residues, counted from 1"),
        ("1;4", "'4' is none"),
        ("1;x", "'x' is none"),
    ):
        with pytest.raises(ValueError, match=said):
            read_task(rows_of({"y": [text]}, lengths=[3]), settings)


def test_labels_of_pairs() -> None:
    settings = task(level="pair")
    labels = read_task(rows_of({"y": ["3-1:8.5; 1-2:<4", None]}, lengths=[3, 2]), settings).labels
    assert as_list(labels) == [(0, 0, 4.0, BELOW), (0, 0, 8.5, EXACT)]
    assert labels.positions is not None
    assert labels.positions.tolist() == [[0, 1], [0, 2]]
    for cell, said in (
        ("1-4:2", "the pair 1-4 is not in its sequence of 3"),
        ("1-1:2", "'1-1:2' is no label of a pair"),
    ):
        with pytest.raises(ValueError, match=f"row 2, column 'y': {said}"):
            read_task(rows_of({"y": [cell]}, lengths=[3]), settings)


@pytest.mark.parametrize(
    ("policy", "kept"),
    [("ends", [0, 1, 4, 5]), ("start", [0, 1, 2, 3]), ("end", [2, 3, 4, 5])],
)
def test_labels_of_residues_that_were_cut_away_are_left_out(policy: TooLong, kept: list[int]) -> None:
    """Of six residues four are kept; the second row is whole."""
    cells = {"sequence": ["MKVLAC", "MKV"], "y": ["0 1 2 3 4 5", "7 8 9"], "c": ["1-6:1 2-3:2", None]}
    table = rows_of(cells).table
    proteins = proteins_of(table, TableSettings(too_long=policy), crop_tokens=6)
    rows = TableRows(table, proteins.record_of_row, proteins.num_records, proteins)
    labels = read_task(rows, task(level="residue")).labels
    assert labels.positions is not None
    found = [(*label[::2], place) for label, place in zip(as_list(labels), labels.positions.tolist(), strict=True)]
    assert found == [*((0, value, place) for place, value in enumerate(kept)), (1, 7, 0), (1, 8, 1), (1, 9, 2)]
    pairs = read_task(rows, task(name="c", level="pair")).labels
    both = [(pair, value) for pair, value in (((0, 5), 1.0), ((1, 2), 2.0)) if set(pair) <= set(kept)]
    assert pairs.positions is not None
    assert pairs.positions.tolist() == [[kept.index(place) for place in pair] for pair, _ in both]
    assert pairs.values.tolist() == [value for _, value in both]


@pytest.mark.parametrize("cell", ['["H", null, "E"]', "['H', None, 'E']".replace("None", "'-'"), "[H;-;E]", "H - E"])
def test_lists_of_residue_labels(cell: str) -> None:
    assert residue_labels([cell], [3], type="multiclass") == [(0, 0, 1.0, 0), (0, 0, 0.0, 2)]


def test_a_list_of_one_number_is_the_number() -> None:
    assert as_list(read({"y": ["[1.5]", "[-3e2]", "2"]}).labels) == [(0, 0, 1.5), (1, 0, -300.0), (2, 0, 2.0)]
