"""Labels of different conditions are labels of different outputs."""

import numpy as np
import pytest

from finetune.labels.objectives import objectives
from support.assays.labelled_rows import Cell, as_list, read


def test_rows_of_one_sequence_at_two_conditions_are_two_outputs() -> None:
    columns: dict[str, list[Cell]] = {"y": ["1", "2", "3", "5", "7"], "pH": ["7", "10", "7.0", None, "9.5"]}
    found = read(columns, [0, 0, 0, 1, 1], conditions=("pH",))
    assert found.outputs == ("y, pH 7", "y, pH 9.5", "y, pH 10", "y, pH not given")  # numbers by size
    assert as_list(found.labels) == [(0, 0, 2.0), (0, 2, 2.0), (1, 1, 7.0), (1, 3, 5.0)]
    assert found.labels.replicates is not None
    assert found.labels.replicates.tolist() == [2, 1, 1, 1]


def test_outputs_of_conditions_do_not_depend_on_the_order_of_rows() -> None:
    columns: dict[str, list[Cell]] = {
        "a": ["1", None, "3", "4"],
        "b": ["5", "6", None, "8"],
        "pH": ["7", "5", "5", "7"],
        "ligand": ["x", "y", "x", "y"],
    }
    whole = read(columns, [0, 1, 2, 3], columns=("a", "b"), conditions=("pH", "ligand"))
    assert whole.outputs == (
        *("a, pH 5, ligand x", "a, pH 7, ligand x", "a, pH 7, ligand y"),
        *("b, pH 5, ligand y", "b, pH 7, ligand x", "b, pH 7, ligand y"),
    )
    turned = read({name: cells[::-1] for name, cells in columns.items()}, [3, 2, 1, 0], columns=("a", "b"),
                  conditions=("pH", "ligand"))  # fmt: skip
    assert turned.outputs == whole.outputs
    assert as_list(turned.labels) == as_list(whole.labels)


def test_two_spellings_of_one_molecule_are_one_condition() -> None:
    pytest.importorskip("rdkit")
    columns: dict[str, list[Cell]] = {"y": ["1", "3", "5"], "SMILES": ["OCC", "C(O)C", "CCN"]}
    found = read(columns, [0, 0, 0], conditions=("SMILES",))
    assert found.outputs == ("y, SMILES CCN", "y, SMILES CCO")
    assert as_list(found.labels) == [(0, 0, 5.0), (0, 1, 2.0)]


def test_conditions_that_cannot_be_outputs_are_refused() -> None:
    columns: dict[str, list[Cell]] = {"y": ["1"] * 5001, "t": [str(i) for i in range(5001)]}
    with pytest.raises(ValueError, match=r"'y': too many conditions: 't' have 5,001 combinations .* at most 5,000"):
        read(columns, conditions=("t",))
    with pytest.raises(ValueError, match="tasks: 'y': conditions is 'T'; allowed are 'y', 't'"):
        read({"y": ["1"], "t": ["1"]}, conditions=("T",))


def test_outputs_of_one_class_each_are_refused_with_all_classes() -> None:
    columns: dict[str, list[Cell]] = {"y": ["0", "0", "1", "1"], "ligand": ["a", "a", "b", "b"]}
    found = read(columns, [0, 1, 2, 3], type="binary", conditions=("ligand",))
    said = "all 4 training labels of 'y' are '0', '1' in each of its 2 outputs alone"
    with pytest.raises(ValueError, match=said):
        objectives([found], np.ones(4, bool))


def test_long_values_of_conditions_are_cut_in_errors() -> None:
    columns: dict[str, list[Cell]] = {"y": ["a", "b"], "SMILES": ["C" * 400] * 2}
    with pytest.raises(ValueError, match=r"different classes of 'y, SMILES C{50}' for one sequence"):
        read(columns, [0, 0], type="multiclass", conditions=("SMILES",))
