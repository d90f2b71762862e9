"""Numbers in cells: text to values, bounds and a unit, a whole column at a time.

In: a column of text. Out: `Numbers`. Kept: nothing.

Read are ``12``, ``-1.5e-3``, ``1,5`` in a column of decimal commas, ``1,234.5``, ``>100``, ``<= 0.1``, ``~5``,
``45 %``, ``12 nM``, ``5.2 ± 0.3``, ``58.7(0.7)``. Plain numbers are converted by pyarrow, all at once; others one by
one, each text once.
"""

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from finetune.tables.units import MOLAR, is_unit, molar

if TYPE_CHECKING:
    import pyarrow

MISSING = ("NA", "N/A", "NaN", "ND", "n.d.", "-")
"""Texts that mean that nothing was measured, unless a recipe names others; upper or lower case."""
EXACT, BELOW, ABOVE = 0, -1, 1

_PLAIN = r"^[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?$"
_BOUNDS = {">": ABOVE, ">=": ABOVE, "≥": ABOVE, ">>": ABOVE, "<": BELOW, "<=": BELOW, "≤": BELOW, "<<": BELOW}
_CELL = re.compile(
    r"(?P<bound>>>|<<|[<>]=?|[≤≥~≈=])?\s*"
    r"(?P<sign>[+-]?)(?P<number>\d[\d.,]*|[.,]\d+|\d{1,3}(?:[\s'’]\d{3})+(?:[.,]\d+)?)"
    r"(?P<power>[eE][+-]?\d+|\s?[x×*·]\s?10\^?[+-]?\d+)?"
    r"(?:\s*(?P<error>±|\+/?-|\((?=[\d.,]+\)))\s*[\d.,]+(?:[eE][+-]?\d+)?\)?)?"
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
    is_about: bool
    """Whether it is given as an approximation (``~5``)."""
    has_error: bool
    """Whether an uncertainty follows it (``± 0.3``)."""


@dataclass(frozen=True, slots=True)
class Numbers:
    """A column as numbers."""

    values: NDArray[np.float64]
    """(rows,) in `unit`; NaN where nothing was measured."""
    censoring: NDArray[np.int8]
    """(rows,) 0 for an exact value, -1 for ``<v`` (the true value is below), 1 for ``>v``."""
    unit: str
    """Unit of all values: that of the column, or the one that stands in the cells; "" without any."""
    decimal: Decimal
    """The decimal sign of the column."""
    refused: tuple[int, ...] = ()
    """Rows whose text is no number; their value is NaN."""
    said: tuple[str, ...] = ()
    """What was decided, for the user."""


class NotOneColumn(ValueError):
    """Cells that cannot be read as one column: decimal signs or units that contradict each other.

    Args:
        text: the sentence after the table and the column.
        index: the row that it is about.
    """

    def __init__(self, text: str, index: int) -> None:
        super().__init__(text)
        self.index = index


def is_missing(cells: "pyarrow.ChunkedArray", missing: Sequence[str] = MISSING) -> NDArray[np.bool_]:
    """(rows,) whether a cell is null, empty or one of the texts that mean that nothing was measured."""
    import pyarrow as pa
    import pyarrow.compute as pc

    text = pc.utf8_lower(pc.utf8_trim_whitespace(cells))
    absent = pc.is_in(text, value_set=pa.array([None, "", *(word.lower() for word in missing)], pa.string()))
    found: NDArray[np.bool_] = np.asarray(absent.combine_chunks().to_numpy(zero_copy_only=False), bool)
    return found


def is_number(text: str) -> bool:
    """Whether one text can be read as a number, with either decimal sign."""
    return any(_parsed(text.strip(), decimal) is not None for decimal in (".", ","))


def parse(
    cells: "pyarrow.ChunkedArray",
    *,
    missing: Sequence[str] = MISSING,
    unit: str = "",
    decimal: Decimal | None = None,
) -> Numbers:
    """Cells of text as numbers; those that are none are listed.

    Raises:
        NotOneColumn: decimal signs or units contradict each other.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    said: list[str] = []
    absent = is_missing(cells, missing)
    text = pc.replace_substring(pc.utf8_trim_whitespace(cells), "\u2212", "-").combine_chunks()
    text = pc.if_else(pa.array(absent), pa.scalar(None, pa.string()), text)
    plain = pc.fill_null(pc.match_substring_regex(text, _PLAIN), False)
    values = np.full(len(text), np.nan)
    is_plain = np.asarray(plain.to_numpy(zero_copy_only=False), bool)
    values[is_plain] = pc.cast(pc.filter(text, plain), pa.float64()).to_numpy(zero_copy_only=False)
    censoring = np.zeros(len(text), np.int8)
    rest = np.flatnonzero(~(is_plain | absent))
    if not len(rest) and decimal != ",":
        return Numbers(values, censoring, unit, ".", (), ())

    coded = pc.dictionary_encode(pc.take(text, pa.array(rest)))
    texts: list[str] = coded.dictionary.to_pylist()
    codes = coded.indices.to_numpy(zero_copy_only=False)
    dotted = is_plain & np.asarray(pc.fill_null(pc.match_substring(text, "."), False).to_numpy(zero_copy_only=False))
    sign = decimal or _decimal(texts, bool(dotted.any()), lambda code: int(rest[np.argmax(codes == code)]))
    if sign == ",":
        said.append("a comma is the decimal sign")
        if dotted.any():  # a point between groups of three digits, or a contradiction
            at = np.flatnonzero(dotted)
            for index in at.tolist():
                cell = _parsed(text[index].as_py(), ",")
                if cell is None:
                    raise NotOneColumn(
                        f"{text[index].as_py()!r} has a decimal point, and other cells of the column a decimal comma; "
                        "write all of them with one sign, or say which it is with data.decimal",
                        index,
                    )
                values[index] = cell.value
    parsed = [_parsed(each, sign) for each in texts]
    wrong = np.array([cell is None for cell in parsed], bool)
    by_text = np.array([np.nan if cell is None else cell.value for cell in parsed])
    values[rest] = by_text[codes]
    censoring[rest] = np.array([0 if cell is None else cell.censoring for cell in parsed], np.int8)[codes]
    counts = np.bincount(codes, minlength=len(texts))
    for name, words in (("is_about", "given as about (~)"), ("has_error", "given with an uncertainty (±)")):
        count = sum(int(n) for cell, n in zip(parsed, counts, strict=True) if cell is not None and getattr(cell, name))
        if count:
            said.append(f"values {words} are taken as they are: {count}")
    units = [cell.unit if cell else "" for cell in parsed]
    bare = int(np.count_nonzero(~absent)) - sum(int(n) for u, n in zip(units, counts, strict=True) if u)
    bare -= int(wrong[codes].sum())
    unit = _one_unit(values, rest, codes, units, counts, unit, bare, said)
    return Numbers(values, censoring, unit, sign, tuple(rest[wrong[codes]].tolist()), tuple(said))


def _parsed(text: str, decimal: Decimal) -> _Cell | None:
    """One text as a number; None if it is none."""
    found = _CELL.fullmatch(text)
    if found is None:
        return None
    bound, unit = found["bound"] or "", found["unit"] or ""
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
    value = float(found["sign"] + body.replace(decimal, "."))
    power = found["power"] or ""
    if power[:1] in ("e", "E"):
        value = float(f"{found['sign']}{body.replace(decimal, '.')}{power}")
    elif power:
        value *= 10.0 ** int(re.split(r"10\^?", power, maxsplit=1)[1])
    return _Cell(value, _BOUNDS.get(bound, EXACT), molar(unit) or unit, bound in ("~", "≈"), found["error"] is not None)


def _decimal(texts: Sequence[str], has_points: bool, row: Any) -> Decimal:
    """The decimal sign that cells of a column prove.

    Args:
        texts: those that are no plain numbers.
        has_points: whether a plain number of the column has a point.
        row: the row of a text, by its index.

    Raises:
        NotOneColumn: ``1,234`` may be 1.234 or 1234, and no other cell shows which.
    """
    unsure = -1
    for code, text in enumerate(texts):
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
        unsure = code if unsure < 0 else unsure
    if unsure >= 0 and not has_points:
        raise NotOneColumn(
            f"{texts[unsure]!r} is a decimal number or has a separator of thousands, and no cell of the column shows "
            "which; set data.decimal = ',' or '.'",
            row(unsure),
        )
    return "."


def _one_unit(
    values: NDArray[np.float64],
    rest: NDArray[np.int64],
    codes: NDArray[Any],
    units: Sequence[str],
    counts: NDArray[np.int64],
    unit: str,
    bare: int,
    said: list[str],
) -> str:
    """Convert values with units of their own to one unit, and return it.

    Raises:
        NotOneColumn: units that cannot be converted into each other, or cells with a unit beside cells without any.
    """
    tally = Counter[str]()
    for each, count in zip(units, counts.tolist(), strict=True):
        if each:
            tally[each] += count
    if not tally:
        return unit
    wanted = molar(unit) or unit or tally.most_common(1)[0][0]
    for each in sorted(tally, key=lambda name: tally[name]):
        rows = rest[np.array([u == each for u in units], bool)[codes]]
        if each == wanted:
            continue
        if not (molar(each) and molar(wanted)):
            raise NotOneColumn(
                f"the unit is {each!r}, and that of the column is {wanted!r}; convert the values to one unit",
                int(rows[0]),
            )
        values[rows] *= MOLAR[each] / MOLAR[wanted]
        said.append(f"values in {each} are converted to {wanted}: {len(rows)}")
    if bare and not unit:
        with_unit = np.zeros(len(values), bool)
        with_unit[rest] = np.array([bool(u) for u in units], bool)[codes]
        if bare > sum(tally.values()):
            raise NotOneColumn(
                f"the value is in {wanted}, and {bare} others of the column have no unit; write the unit of the column "
                "into the task (unit)",
                int(np.flatnonzero(with_unit)[0]),
            )
        index = int(np.flatnonzero(~with_unit & ~np.isnan(values))[0])
        raise NotOneColumn(
            f"the value has no unit, and {sum(tally.values())} others of the column have one "
            f"({', '.join(sorted(tally)[:_MOST_TEXTS])}); write the unit of the column into the task (unit)",
            index,
        )
    if not unit:
        said.append(f"the unit {wanted} stands in the cells")
    return unit or wanted
