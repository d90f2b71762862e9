"""Units: which text is one, the unit in a column's name, and what molar units are in mol/l.

In: a header or a unit as text. Out: names, units, factors. Kept: nothing.
"""

import re

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
