"""The role of one column by itself: by its cells, and by its name where cells cannot say.

In: a column, the residues of each row. Out: (role, reason). Kept: nothing. A name counts only if the cells fit it.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from data.alphabet import STANDARD_RESIDUES
from data.sources.tables import ID_COLUMNS
from finetune.look import words
from finetune.look.column import Column
from finetune.look.guess import guess
from finetune.tasks.molecules import is_molecules

_THREE_LETTERS = {
    *("ala", "arg", "asn", "asp", "cys", "gln", "glu", "gly", "his", "ile", "leu", "lys", "met", "phe", "pro", "ser"),
    *("thr", "trp", "tyr", "val"),
}
_LEAST_RESIDUES = 8
"""Kinds of amino acids from which on single letters are residues, whatever their name is."""
_MOST_SETTINGS = 12
"""Distinct numbers that an experimenter sets at most, or a third of the rows."""


def own_role(column: Column, residues: NDArray[np.int64]) -> tuple[str, str] | None:
    """The role of a column that is no task; None where it may be one."""
    texts = column.texts
    if not column.num_measured:
        return "empty", "no cell holds anything" if not column.all.texts else f"only {column.all.texts[0]!r}"
    if len(texts) == 1:
        return "constant", f"{texts[0][:40]!r} in every row that has a value"
    return _of_numbers(column, residues) if column.numbers is not None else _of_words(column, residues)


def _of_numbers(column: Column, residues: NDArray[np.int64]) -> tuple[str, str] | None:
    name, values = words.plain(column.name), column.values
    known = values[~np.isnan(values)]
    distinct, is_whole = len(column.texts), bool((known % 1 == 0).all() and (known >= 0).all())
    is_own = is_whole and len(np.unique(known)) == len(known) > 2
    if is_own and len(known) == len(values) and (np.diff(values) == 1).all():
        return "index", "it counts the rows"
    if is_own and words.INDEX.search(name):
        return "index", "a whole number of its own in each row, by its name the number of a row"
    if _is_length(values, residues):
        return "length", "the number of the protein's residues"
    if is_date(column) and any(sign in column.texts[0] for sign in "-/:"):
        return "date", f"dates such as {column.texts[0]!r}"
    if words.PREDICTED.search(name):
        return "prediction", "by its name another model's, or computed from the sequence; it was not measured"
    if words.PROBABILITY.search(name) and (("log" in name) or ((known >= 0) & (known <= 1)).all()):
        return "p-value", "by its name the significance of another number"
    if words.UNCERTAINTY.search(name) and ((known >= 0).all() or words.SIGNED.search(name)):
        return "uncertainty", "by its name the error of another number"
    if words.DESCRIPTORS.search(name) or (is_whole and words.PLACES.search(name)):
        return "descriptor", "by its name where or what a row is, and nothing that was measured"
    if is_whole and words.YEAR.search(name) and known.min() > 1900 and known.max() < 2100:
        return "date", "years, by its name"
    if (is_whole and words.COUNTS.search(name)) or words.READS.search(name):
        return "count", "by its name a number of measurements, reads or mutations"
    if is_whole and words.META.search(name):
        return "note", "by its name about the measurement, and nothing that was measured"
    if words.CONDITION.search(name) and distinct <= max(_MOST_SETTINGS, len(known) // 3):
        return "condition", f"{distinct} numbers, by its name what was set and not measured"
    if is_whole and words.GROUP.search(name) and 2 <= distinct <= max(2, len(known) // 2):
        return "group", f"{distinct} groups of rows, by its name; split.by = 'group' holds them out together"
    if (is_own and words.IDENTIFIER.search(name)) or (is_whole and words.NUMBERED.search(name)):
        return "id", "whole numbers, by its name those of ids"
    return None


def _of_words(column: Column, residues: NDArray[np.int64]) -> tuple[str, str] | None:
    name, texts, count = words.plain(column.name), column.texts, column.num_measured
    found = guess(column, residues)
    if found is not None and found.settings.get("level") == "residue":
        return ("mask", "by its name which residues were observed") if words.MASK.search(name) else None
    if is_date(column):
        return "date", f"dates such as {texts[0]!r}"
    if len(texts) > 2 and is_molecules(column.name, texts):
        return "molecule", "not read: the model sees proteins alone"
    if _are_residues(texts) and (len(texts) >= _LEAST_RESIDUES or words.RESIDUE.search(name)):
        return "residue", "one amino acid in a cell: which one was replaced, or is there"
    if words.PREDICTED.search(name):
        return "prediction", "by its name another model's, or computed from the sequence; it was not measured"
    if column.name.strip().lower() in ID_COLUMNS:
        return "id", "a usual name of ids"
    if len(texts) > 0.9 * count and words.IDENTIFIER.search(name):
        return "id", "nearly as many texts as rows"
    is_group = words.GROUP.search(name) or words.LABEL.search(name)
    if is_group and 2 <= len(texts) <= max(2, count // 2):
        return "group", f"{len(texts)} groups of rows, by its name; split.by = 'group' holds them out together"
    if words.CONDITION.search(name):
        return "condition", f"{len(texts)} texts, by its name what was set and not measured"
    if {text.casefold() for text in texts} <= words.KINDS:
        return "note", "says whether a protein is the wild type"
    if words.META.search(name) and found is not None:
        return "note", "by its name about the measurement, and nothing that was measured"
    return None


def of_text(column: Column) -> tuple[str, str]:
    """The role of a column that is no task."""
    texts = column.texts
    if len(texts) > 0.9 * column.num_measured:
        return "id", f"{len(texts):,} texts, nearly as many as rows"
    repeated = f"{len(texts):,} texts in {column.num_measured:,} rows"
    if column.num_measured < 3 * len(texts):
        return "text", f"{repeated}: too many for classes; --task reads them"
    return "text", repeated


def is_date(column: Column) -> bool:
    """Whether nearly all cells are dates."""
    texts = column.texts[:300]
    return sum(words.DATE.fullmatch(text) is not None for text in texts) > 0.9 * len(texts)


def _are_residues(texts: Sequence[str]) -> bool:
    return all(text in STANDARD_RESIDUES or text == "*" or text.casefold() in _THREE_LETTERS for text in texts)


def _is_length(values: NDArray[np.float64], residues: NDArray[np.int64]) -> bool:
    both = ~np.isnan(values) & (residues > 0)
    return bool(both.sum() > 2 and (values[both] == residues[both]).mean() > 0.95)
