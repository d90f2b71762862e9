"""Numbers in cells: text to values, bounds and a unit, a whole column at a time.

In: the texts of a column, each once; a header. Out: `ParsedNumbers`; name and unit of a header; the factor of a
molar unit to mol/l. Kept: nothing.

Read are ``12``, ``-1.5e-3``, ``1,5`` in a column of decimal commas, ``1,234.5``, ``>100``, ``<= 0.1``, ``~5``, ``45
%``, ``12 nM``, ``5.2 ± 0.3``, ``58.7(0.7)``. Plain numbers are converted by pyarrow, all at once; others one by one.
"""

import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

MOLAR = {"M": 1.0, "mM": 1e-3, "uM": 1e-6, "nM": 1e-9, "pM": 1e-12, "fM": 1e-15}
"""Mol/l of each molar unit."""

_BASES = (
    *("M", "mol", "l", "L", "g", "Da", "m", "s", "sec", "min", "h", "hr", "hrs", "d", "C", "K", "F", "°C", "%"),
    *("U", "IU", "J", "cal", "V", "A", "Å", "Hz", "RU", "AU", "a.u.", "RFU", "RLU", "OD", "bp", "fold", "percent"),
    *("kT", "CFU", "MIC", "ppm", "RLUs", "RFUs"),
)
_ALTERNATIVES = "|".join(sorted(map(re.escape, _BASES), key=len, reverse=True))
_PART = rf"(?:1|[fpnuµμmckMG]?(?:{_ALTERNATIVES})(?:\^?[-⁻]?[1-3¹²³])?)"
_UNIT = re.compile(rf"{_PART}(?:\s?[/·*.\s]\s?{_PART})*")
_BRACKETS = re.compile(r"(?P<name>.*\S)\s*(?:\((?P<round>[^()]+)\)|\[(?P<square>[^\[\]]+)\])\s*")
_ENDING = re.compile(r"(?P<name>.+?)_(?P<unit>[fpnuµμm]M|C|K|pct|percent|sec|min|hr)")
_TEMPERATURE = re.compile(r"(?:.*_)?(?:d?T[a-z]?\d*|.*temp.*|.*melt.*)", re.I)
_MOLAR_WORDS = {
    **{f"{prefix}molar": f"{letter}M" for prefix, letter in (("milli", "m"), ("micro", "u"), ("nano", "n"))},
    **{"molar": "M", "picomolar": "pM", "femtomolar": "fM", "mol/l": "M", "mmol/l": "mM", "umol/l": "uM"},
    **{"nmol/l": "nM", "pmol/l": "pM", "fmol/l": "fM"},
}


def is_unit(text: str) -> bool:
    """Whether a text is a unit, such as ``nM``, ``1/s``, ``kcal/mol``, ``ug/mL`` or ``%``."""
    return _UNIT.fullmatch(text.strip()) is not None


def name_and_unit(header: str) -> tuple[str, str]:
    """A column's name without its unit, and the unit: ``IC50 (nM)``, ``Tm_C``, ``kcat [1/s]``; "" where it has none.

    What stands in brackets and is no unit stays in the name. C and K after an underscore are units of a temperature
    alone, as ``chain_C`` is a chain.
    """
    if (found := _BRACKETS.fullmatch(header)) and is_unit(unit := found["round"] or found["square"]):
        return found["name"].strip(), unit.strip()
    found = _ENDING.fullmatch(header)
    if found and (found["unit"] not in ("C", "K") or _TEMPERATURE.fullmatch(found["name"])):
        return found["name"], {"pct": "%", "percent": "%"}.get(found["unit"], found["unit"])
    return header.strip(), ""


def molar(unit: str) -> str:
    """The usual spelling of a molar unit (a key of `MOLAR`); "" for any other unit."""
    text = unit.strip().replace("µ", "u").replace("μ", "u")
    if text in MOLAR:
        return text
    return _MOLAR_WORDS.get(text.lower(), "")


def molar_factor(unit: str, said_by: str) -> float:
    """Mol/l of one of a unit.

    Args:
        unit: such as ``nM``.
        said_by: what names the unit, for the error.

    Raises:
        ValueError: it is no molar unit, such as ``ug/mL``, of which mol/l follow only with a molecule's mass.
    """
    if spelled := molar(unit):
        return MOLAR[spelled]
    mass = " A mass per volume gives mol/l only with the mass of a molecule: convert it first." if "/" in unit else ""
    raise ValueError(
        f"{said_by} is {unit!r}, which is no molar unit; transform 'p' is -log10 of mol/l and needs one of "
        f"{', '.join(MOLAR)}.{mass} For any other unit use transform 'log10'"
    )


MISSING = ("NA", "N/A", "NaN", "ND", "n.d.", "-")
"""Texts that mean that nothing was measured, unless a recipe names others; upper or lower case."""
EXACT, BELOW, ABOVE = 0, -1, 1
"""Censoring of a number: the true value is as it is written, is below it (``<v``), or above it (``>v``)."""

_PLAIN = r"^[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?$"
_BOUNDS = {">": ABOVE, ">=": ABOVE, "≥": ABOVE, ">>": ABOVE, "<": BELOW, "<=": BELOW, "≤": BELOW, "<<": BELOW}
_CELL = re.compile(
    r"(?P<bound>>>|<<|[<>]=?|[≤≥~≈=])?\s*"
    r"(?P<sign>[+-]?)(?P<number>\d[\d.,]*|[.,]\d+|\d{1,3}(?:[\s'’]\d{3})+(?:[.,]\d+)?)"
    r"(?P<power>[eE][+-]?\d+|\s?[x×*·]\s?10\^?[+-]?\d+)?"
    r"(?:\s*(?:±|\+/?-|\((?=[\d.,]+\)))\s*[\d.,]+(?:[eE][+-]?\d+)?\)?)?"
    r"\s*(?P<unit>%|°?[^\W\d_][\w°%^/*·⁻¹²³-]{0,15})?"
)
_GROUPED = {".": re.compile(r"\d{1,3}(,\d{3})+(\.\d*)?"), ",": re.compile(r"\d{1,3}(\.\d{3})+(,\d*)?")}
_AMBIGUOUS = re.compile(r"[1-9]\d{0,2},\d{3}")
_MOST_TEXTS = 5
"""How many texts an error shows."""

Decimal = Literal[".", ","]


class _Cell(NamedTuple):
    value: float
    censoring: int
    unit: str


@dataclass(frozen=True, slots=True)
class ParsedNumbers:
    """Texts as numbers."""

    values: NDArray[np.float64]
    """(texts,) in `unit`; NaN for one that is no number."""
    censoring: NDArray[np.int8]
    """(texts,) 0 for an exact value, -1 for ``<v`` (the true value is below), 1 for ``>v``."""
    unit: str
    """Unit of all values: that of the column, or the one that stands in the texts; "" without any."""
    decimal: Decimal
    """The decimal sign of the column."""
    refused: tuple[int, ...] = ()
    """Texts that are no numbers."""
    said: tuple[str, ...] = ()
    """What was decided, for the user."""


class MixedColumnError(ValueError):
    """Cells that cannot be read as one column: decimal signs or units that contradict each other.

    Args:
        text: the sentence after the table and the column.
        index: the text that it is about.
    """

    def __init__(self, text: str, index: int) -> None:
        super().__init__(text)
        self.index = index


def number_of(text: str) -> float | None:
    """The finite number that a text is, as Python writes it; None for another text."""
    with suppress(ValueError):
        if math.isfinite(found := float(text)):
            return found
    return None


def is_number(text: str) -> bool:
    """Whether one text can be read as a number, with either decimal sign."""
    return any(_parsed(text.strip(), decimal) is not None for decimal in (".", ","))


def parse(texts: Sequence[str], *, unit: str = "", decimal: Decimal | None = None) -> ParsedNumbers:
    """Texts as numbers; those that are none are listed.

    Args:
        texts: of a column, in which something was measured.
        unit: unit of the column; a text with another molar unit is converted to it.
        decimal: the decimal sign; without it, the texts decide.

    Raises:
        MixedColumnError: decimal signs or units contradict each other.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    array = pc.replace_substring(pc.utf8_trim_whitespace(pa.array(texts, pa.string())), "\u2212", "-")
    plain = pc.match_substring_regex(array, _PLAIN)
    is_plain = np.asarray(plain.to_numpy(zero_copy_only=False), bool)
    values, censoring = np.full(len(texts), np.nan), np.zeros(len(texts), np.int8)
    values[is_plain] = pc.cast(pc.filter(array, plain), pa.float64()).to_numpy(zero_copy_only=False)
    if is_plain.all() and decimal != ",":
        return ParsedNumbers(values, censoring, unit, ".")

    said: list[str] = []
    trimmed: list[str] = array.to_pylist()
    others = {index: trimmed[index] for index in np.flatnonzero(~is_plain).tolist()}
    dotted = [index for index in np.flatnonzero(is_plain).tolist() if "." in trimmed[index]]
    sign = decimal or _decimal(others, has_points=bool(dotted))
    if sign == ",":
        said.append("a comma is the decimal sign")
        for index in dotted:  # a point between groups of three digits, or a contradiction
            cell = _parsed(trimmed[index], ",")
            if cell is None:
                raise MixedColumnError(
                    f"{trimmed[index]!r} has a decimal point, and other cells of the column a decimal comma; write all "
                    "of them with one sign, or say which it is with data.decimal",
                    index,
                )
            values[index] = cell.value
    cells = {index: cell for index, text in others.items() if (cell := _parsed(text, sign)) is not None}
    for index, cell in cells.items():
        values[index], censoring[index] = cell.value, cell.censoring
    unit = _one_unit(values, {index: cell.unit for index, cell in cells.items() if cell.unit}, unit, said)
    return ParsedNumbers(
        values, censoring, unit, sign, tuple(index for index in others if index not in cells), tuple(said)
    )


def _parsed(text: str, decimal: Decimal) -> _Cell | None:
    """One text as a number; None if it is none."""
    found = _CELL.fullmatch(text)
    if found is None:
        return None
    unit = found["unit"] or ""
    if unit and not is_unit(unit):
        return None
    body = re.sub(r"[\s'’]", "", found["number"])
    other = "," if decimal == "." else "."
    if other in body:
        if not _GROUPED[decimal].fullmatch(body):
            return None
        body = body.replace(other, "")
    if body.count(decimal) > 1:
        return None
    power = re.sub(r"\s?[x×*·]\s?10\^?", "e", found["power"] or "")
    value = float(f"{found['sign']}{body.replace(decimal, '.')}{power}")
    return _Cell(value, _BOUNDS.get(found["bound"] or "", EXACT), molar(unit) or unit)


def _decimal(texts: Mapping[int, str], *, has_points: bool) -> Decimal:
    """The decimal sign that texts of a column prove.

    Args:
        texts: those that are no plain numbers, by their index.
        has_points: whether a plain number of the column has a point.

    Raises:
        MixedColumnError: ``1,234`` may be 1.234 or 1234, and no other cell shows which.
    """
    unsure = -1
    for index, text in texts.items():
        found = _CELL.fullmatch(text)
        body = found["number"] if found else ""
        if "," not in body:
            continue
        if "." in body:
            return "." if body.rindex(".") > body.rindex(",") else ","
        if body.count(",") > 1:
            return "."
        if not _AMBIGUOUS.fullmatch(body):
            return ","
        unsure = index if unsure < 0 else unsure
    if unsure >= 0 and not has_points:
        raise MixedColumnError(
            f"{texts[unsure]!r} is a decimal number or has a separator of thousands, and no cell of the column shows "
            "which; set data.decimal = ',' or '.'",
            unsure,
        )
    return "."


def _one_unit(values: NDArray[np.float64], units: Mapping[int, str], unit: str, said: list[str]) -> str:
    """Convert values with units of their own, by their index, to one unit, and return it.

    Raises:
        MixedColumnError: units that cannot be converted into each other, or cells with a unit beside cells without any.
    """
    tally = Counter(units.values())
    if not tally:
        return unit
    wanted = molar(unit) or unit or tally.most_common(1)[0][0]
    for each in sorted((name for name in tally if name != wanted), key=lambda name: tally[name]):
        own = [index for index, name in units.items() if name == each]
        if not (molar(each) and molar(wanted)):
            raise MixedColumnError(
                f"the unit is {each!r}, and that of the column is {wanted!r}; convert the values to one unit", own[0]
            )
        values[own] *= MOLAR[each] / MOLAR[wanted]
        said.append(f"values in {each} are converted to {wanted}: {len(own)}")
    bare = [index for index in np.flatnonzero(~np.isnan(values)).tolist() if index not in units]
    if bare and not unit:
        raise MixedColumnError(
            f"{len(units)} values of the column have a unit ({', '.join(sorted(tally)[:_MOST_TEXTS])}), and "
            f"{len(bare)} have none; write the unit of the column into the task (unit)",
            min(units) if len(bare) > len(units) else bare[0],
        )
    if not unit:
        said.append(f"the unit {wanted} stands in the cells")
    return unit or wanted
