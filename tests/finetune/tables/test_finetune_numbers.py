"""Numbers in cells: values, bounds, units, decimal signs; and units in the names of columns."""

import math

import numpy as np
import pytest

from finetune.tables.numbers import (
    Decimal,
    MixedColumnError,
    ParsedNumbers,
    is_number,
    is_unit,
    molar_factor,
    name_and_unit,
    parse,
)
from support.assays.labelled_rows import as_list, read


def parsed(*cells: str, unit: str = "", decimal: Decimal | None = None) -> ParsedNumbers:
    return parse(cells, unit=unit, decimal=decimal)


@pytest.mark.parametrize(
    ("text", "value", "censoring"),
    [
        ("12", 12.0, 0),
        (" -1.5e-3 ", -0.0015, 0),
        ("+.5", 0.5, 0),
        ("5.", 5.0, 0),
        ("\u22125", -5.0, 0),
        (">100", 100.0, 1),
        ("> 5.7", 5.7, 1),
        ("≥1e3", 1000.0, 1),
        ("< 6.1", 6.1, -1),
        ("<=0.1", 0.1, -1),
        ("<-2.3", -2.3, -1),
        ("~5", 5.0, 0),
        ("=5", 5.0, 0),
        ("5.2 ± 0.3", 5.2, 0),
        ("5.2+/-0.3", 5.2, 0),
        ("1,234.5", 1234.5, 0),
        ("1,234,567", 1234567.0, 0),
        ("1 234 567", 1234567.0, 0),
        ("1.2x10^-3", 0.0012, 0),
        ("1.2 × 10-3", 0.0012, 0),
        ("45%", 45.0, 0),
    ],
)
def test_one_cell(text: str, value: float, censoring: int) -> None:
    found = parsed(text)
    assert found.values[0] == pytest.approx(value, rel=1e-15)
    assert (found.censoring.tolist(), found.refused) == ([censoring], ())


@pytest.mark.parametrize(
    "text", ["abc", "1-5", "(5)", "1.2.3", "12/05/2026", "3 of 5", "inf", "0x10", "1,23,4", "--1", "12abc"]
)
def test_what_is_no_number_is_refused(text: str) -> None:
    assert parsed("1.5", text).refused == (1,)
    assert not is_number(text)


def test_empty_cells_and_missing_words_are_not_observed() -> None:
    found = read({"y": ["1", None, "", " ", "n/a", "ND", "-", "nan", "n.d.", "0"]})
    assert as_list(found.labels) == [(0, 0, 1.0), (9, 0, 0.0)]
    assert as_list(read({"y": ["5", "none"]}, missing=("none",)).labels) == [(0, 0, 5.0)]
    with pytest.raises(ValueError, match="'NA' is no number"):
        read({"y": ["5", "NA"]}, missing=("none",))


def test_decimal_commas_are_decided_by_the_column() -> None:
    assert parsed("1,5", "2", "1,234").values.tolist() == [1.5, 2.0, 1.234]
    assert parsed("1,5").said == ("a comma is the decimal sign",)
    assert parsed("1.234,5", "1.000").values.tolist() == [1234.5, 1000.0]  # a point between groups of three digits
    assert parsed("0,123").values.tolist() == [0.123]  # no group of thousands begins with 0
    assert parsed("1,234", "12.5").values.tolist() == [1234.0, 12.5]
    assert parsed("< 0,1", "1e-3").values.tolist() == [0.1, 0.001]
    assert parsed("1,234", decimal=",").values.tolist() == [1.234]
    assert parsed("1,234", decimal=".").values.tolist() == [1234.0]


def test_contradictions_are_refused_with_their_row() -> None:
    with pytest.raises(MixedColumnError, match=r"'1,234' is a decimal number or .* set data\.decimal") as caught:
        parsed("7", "1,234", "2,345")
    assert caught.value.index == 1
    with pytest.raises(
        MixedColumnError, match=r"'3\.5' has a decimal point, and other cells .* a decimal comma"
    ) as caught:
        parsed("1,5", "2,5", "3.5")
    assert caught.value.index == 2


def test_units_in_cells() -> None:
    found = parsed("12 nM", "0.5 µM", "> 1 mM", "7nM")
    assert found.values.tolist() == pytest.approx([12.0, 500.0, 1e6, 7.0], rel=1e-15)
    assert (found.unit, found.censoring.tolist()) == ("nM", [0, 0, 1, 0])
    assert "values in uM are converted to nM: 1" in found.said
    assert parsed("12", "0.5 uM", unit="nM").values.tolist() == pytest.approx([12.0, 500.0], rel=1e-15)
    with pytest.raises(MixedColumnError, match=r"2 values of the column have a unit \(nM\), and 1 have none") as caught:
        parsed("1 nM", "2", "3 nM")
    assert caught.value.index == 1
    with pytest.raises(MixedColumnError, match="1 values of the column have a unit") as caught:
        parsed("1", "2", "3 nM")
    assert caught.value.index == 2
    with pytest.raises(MixedColumnError, match="the unit is 'ug/mL', and that of the column is 'nM'") as caught:
        parsed("1 nM", "2 ug/mL", "3 nM")
    assert caught.value.index == 1


def test_an_error_names_row_column_and_text() -> None:
    with pytest.raises(ValueError, match=r"^t\.csv: row 3, column 'y': 'two' is no number \(1 more such text in"):
        read({"y": ["1", "two", "three"]})
    with pytest.raises(ValueError, match=r"^t\.csv: row 2, column 'y': '1,234' is a decimal number"):
        read({"y": ["1,234", "2,345"]})


@pytest.mark.parametrize("decimal", [".", ","])
def test_every_float_comes_back_from_its_text(decimal: Decimal) -> None:
    rng = np.random.default_rng(0)
    values = rng.normal(size=2000) * 10.0 ** rng.integers(-12, 12, 2000)
    cells = [f"{'<' if i % 3 else ''}{value!r}".replace(".", decimal) for i, value in enumerate(values.tolist())]
    found = parsed(*cells)
    assert np.array_equal(found.values, values)
    assert np.array_equal(found.censoring, [-1 if i % 3 else 0 for i in range(2000)])


@pytest.mark.parametrize(
    ("header", "name", "unit"),
    [
        ("IC50 (nM)", "IC50", "nM"),
        ("kcat [1/s]", "kcat", "1/s"),
        ("Kd (µM)", "Kd", "µM"),
        ("Tm_C", "Tm", "C"),
        ("Tm (°C)", "Tm", "°C"),
        ("IC50_nM", "IC50", "nM"),
        ("dG (kcal/mol)", "dG", "kcal/mol"),
        ("kcat/Km (M^-1 s^-1)", "kcat/Km", "M^-1 s^-1"),
        ("yield (%)", "yield", "%"),
        ("activity (U/mg)", "activity", "U/mg"),
        ("score (higher is better)", "score (higher is better)", ""),
        ("mean (WT)", "mean (WT)", ""),
        ("chain_C", "chain_C", ""),
        ("NR-AR", "NR-AR", ""),
    ],
)
def test_units_in_headers(header: str, name: str, unit: str) -> None:
    assert name_and_unit(header) == (name, unit)


def test_molar_units() -> None:
    units = {
        "M": 1.0,
        "mM": 1e-3,
        "uM": 1e-6,
        "µM": 1e-6,
        "μM": 1e-6,
        "nM": 1e-9,
        "pM": 1e-12,
        "fM": 1e-15,
        "nmol/L": 1e-9,
    }
    assert {unit: molar_factor(unit, "unit") for unit in units} == units
    with pytest.raises(ValueError, match=r"^unit of 'IC50' is 'ug/mL', which is no molar unit.*mass of a molecule"):
        molar_factor("ug/mL", "unit of 'IC50'")
    assert is_unit("1/s")
    assert not is_unit("rep 1")
    assert math.isnan(parsed("NA").values[0])
