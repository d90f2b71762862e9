"""Columns by name and by pattern, classes and which of two is positive, scales and their inverse."""

import numpy as np
import pytest

from finetune.tasks.classes import classes_of, index_of
from finetune.tasks.columns import columns_of, outputs_of
from finetune.tasks.task import Scale
from support.assays.labelled_rows import task

COLUMNS = ("id", "CHEMBL2", "CHEMBL10", "IC50 [nM]", "IC50 n", "Tm")


@pytest.mark.parametrize(
    ("named", "found", "outputs"),
    [
        (("CHEMBL*",), ("CHEMBL2", "CHEMBL10"), ("CHEMBL2", "CHEMBL10")),
        (("CHEMBL?",), ("CHEMBL2",), ("y",)),
        (("IC50 [nM]",), ("IC50 [nM]",), ("y",)),  # brackets are letters, in patterns too
        (("Tm", "IC50 [n*"), ("Tm", "IC50 [nM]"), ("Tm", "IC50 [nM]")),
        (("Tm", "*m"), ("Tm",), ("y",)),
    ],
)
def test_columns_by_name_and_pattern(named: tuple[str, ...], found: tuple[str, ...], outputs: tuple[str, ...]) -> None:
    settings = task(columns=named)
    assert columns_of(settings, COLUMNS, "t.csv") == found
    assert outputs_of(settings, found) == outputs


def test_a_task_without_columns_is_its_name_and_replicates_are_one_output() -> None:
    assert columns_of(task(name="Tm"), COLUMNS, "t.csv") == ("Tm",)
    settings = task(columns=("CHEMBL*",), columns_are="replicates")
    assert outputs_of(settings, columns_of(settings, COLUMNS, "t.csv")) == ("y",)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        (
            "CHEMBL11",
            "t.csv: task 'y': there is no column 'CHEMBL11'; the nearest is 'CHEMBL10'; its columns are 'id', ",
        ),
        ("tm", "there is no column 'tm'; the nearest is 'Tm'"),
        ("KI*", r"no column fits the pattern 'KI\*'; its columns are"),
    ],
)
def test_a_column_that_is_not_there_is_refused(name: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        columns_of(task(columns=(name,)), COLUMNS, "t.csv")


def test_a_long_list_of_columns_is_cut() -> None:
    with pytest.raises(ValueError, match=r"'c19' and 981 more$"):
        columns_of(task(columns=("x",)), [f"c{i}" for i in range(1001)], "t.csv")


# Classes ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("texts", "classes"),
    [
        (("yes", "No"), ("No", "yes")),
        (("1", "0", "1.0"), ("0", "1")),
        (("TRUE", "false"), ("false", "TRUE")),
        (("+", "-"), ("-", "+")),
        (("Active",), ("inactive", "Active")),
        (("0",), ("0", "1")),
        (("yes", "0"), ("no", "yes")),
    ],
)
def test_the_positive_one_of_two_words_is_known(texts: tuple[str, ...], classes: tuple[str, str]) -> None:
    settings = task(type="binary")
    assert classes_of(settings, texts) == classes
    positive = {"yes", "1", "1.0", "TRUE", "+", "Active"}
    assert [index_of(text, classes, settings) for text in texts] == [int(text in positive) for text in texts]


def test_words_that_are_not_known_must_be_named() -> None:
    said = r"of type binary and its labels are 'stable', 'loose'; say which one is positive by naming it second"
    with pytest.raises(ValueError, match=said):
        classes_of(task(type="binary"), ("stable", "loose"))
    settings = task(type="binary", classes=("yes", "no"))  # a recipe's word comes first: here "no" is positive
    assert [index_of(text, settings.classes, settings) for text in ("no", "YES", "1")] == [1, 0, None]


@pytest.mark.parametrize(
    ("kind", "texts", "classes"),
    [
        (
            "multiclass",
            ("Cell.membrane", "Nucleus", "Cytoplasm-Nucleus"),
            ("Cell.membrane", "Cytoplasm-Nucleus", "Nucleus"),
        ),
        ("multiclass", ("10", "9", "9.0"), ("9", "10")),
        ("ordinal", ("10", "-1", "2"), ("-1", "2", "10")),
    ],
)
def test_order_of_the_classes_of_a_table(kind: str, texts: tuple[str, ...], classes: tuple[str, ...]) -> None:
    settings = task(type=kind)
    assert classes_of(settings, texts) == classes
    assert [classes[index_of(text, classes, settings) or 0] for text in texts[:2]] == list(texts[:2])


def test_ordinal_words_need_an_order() -> None:
    with pytest.raises(ValueError, match="'high', 'low', whose order is not known; name them from the lowest"):
        classes_of(task(type="ordinal"), ("high", "low"))


@pytest.mark.parametrize(
    ("values", "said"),
    [
        (
            {"type": "binary", "classes": ("a", "b", "c")},
            r"classes is \['a', 'b', 'c'\]; of a task of type binary give two",
        ),
        (
            {"type": "binary", "transform": "p"},
            r"tasks\.\w+\.transform is 'p'; only a task of numbers reads it, and tasks\.\w+\.type is 'binary'",
        ),
        ({"imbalance": "focal"}, r"tasks\.\w+\.imbalance is 'focal'; only a task of classes .*type is 'regression'"),
        ({"classes": ("a",)}, r"\.classes is \('a',\); only a task of classes reads it"),
        (
            {"upper_bounds": ("<<",)},
            r"tasks\.\w+\.upper_bounds is \('<<',\); only tasks\.\w+\.bound_column reads it, .* is None",
        ),
        ({"type": "multiclass", "classes": ("a", "a")}, "name each once"),
    ],
)
def test_settings_that_contradict_each_other(values: dict[str, object], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        task(**values)


# Scales -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("scale", "number", "value"),
    [
        (Scale("none", "nM"), 100.0, 100.0),
        (Scale("log10", "nM"), 100.0, 2.0),
        (Scale("p", "nM"), 100.0, 7.0),
        (Scale("p", "\N{MICRO SIGN}M"), 0.1, 7.0),
        (Scale("p", "mol/l"), 1e-7, 7.0),
    ],
)
def test_scales_and_their_inverse(scale: Scale, number: float, value: float) -> None:
    assert scale.of(np.array([number])).tolist() == [value]
    assert scale.undone(np.array([value])) == pytest.approx(number, rel=1e-15)
    assert scale.turns_bounds == (scale.transform == "p")


def test_p_needs_a_molar_unit() -> None:
    with pytest.raises(ValueError, match=r"'nm'.*no molar unit.*one of M, mM, uM, nM"):
        Scale("p", "nm").of(np.ones(1))
