"""The role of one column by itself: by its cells, and by its name where cells cannot say.

In: a column, the residues of each row. Out: (role, reason). Kept: nothing. A name counts only if the cells fit it.
"""

import re
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from data.alphabet import STANDARD_RESIDUES
from data.sources.tables import ID_COLUMNS
from finetune.look import terms
from finetune.look.column_profile import ColumnProfile
from finetune.look.columns.own_split import part_of
from finetune.look.infer_task import infer_task
from finetune.tables.numbers import name_and_unit
from finetune.tasks.classes import is_molecules

_OTHERS = ("*", "X", "Z", "-")
"""Stops, unknown residues and gaps."""
_FEW_OTHERS = 0.03
"""Share of cells of a column of residues that are none."""
_Rule = tuple[object, str, str]
"""Whether it holds, the role, the reason."""
_PREDICTED = "by its name another model's, or computed from the sequence; it was not measured"
_DESCRIBES = "by its name where or what a row is, and nothing that was measured"
_SET = "by its name what was set and not measured"
_IDS = "whole numbers, by its name those of ids"
_GROUP = "by its name; split.by = 'group' holds them out together"
_SAMPLE = 300
"""Distinct texts of a column that are looked at."""
FREE_TEXT, OF_RESIDUES = "free text", "labels of residues"
HIDDEN = {
    "EC numbers": (terms.EC, "too many to learn each: write their first levels, such as 3.1, into another column"),
    "numbers in text": (terms.IN_TEXT, "write the numbers alone into another column to learn them"),
    OF_RESIDUES: (re.compile(r"^[+-]{8,}$"), "'-' is a residue that was not observed: write 1 and 0 instead"),
    FREE_TEXT: (terms.PROSE, "it cannot be learned: code it as classes or numbers in another column"),
}
"""Role of a column of texts that hide labels: how they are written, and what to do."""
_LEAST_RESIDUES = 8
"""Kinds of amino acids from which on single letters are residues, whatever their name is."""
_MOST_RATINGS, _MOSTLY = 4, 0.9
_MOST_SETTINGS = 12
"""Distinct numbers that an experimenter sets at most, or a third of the rows."""


def infer_role(column: ColumnProfile, residues: NDArray[np.int64]) -> tuple[str, str] | None:
    """The role of a column that is no task; None where it may be one."""
    if not column.num_measured:
        return "empty", "no cell holds anything" if not column.all.texts else f"only {column.all.texts[0]!r}"
    if len(column.texts) == 1:
        only = column.texts[0]
        is_tested = column.num_measured < column.num_rows and part_of(only) in ("test", "validation")
        more = ": a split? Write 'train' into the others" if is_tested else ""
        return "constant", f"{only[:40]!r} in every row that has a value{more}"
    rules = _of_numbers(column, residues) if column.numbers is not None else _of_words(column, residues)
    return next(((role, reason) for holds, role, reason in rules if holds), None)


def _of_numbers(column: ColumnProfile, residues: NDArray[np.int64]) -> Sequence[_Rule]:
    """The rules of columns of numbers; the first that holds decides."""
    name, bare = terms.plain(column.name), terms.plain(name_and_unit(column.name)[0])
    values, distinct = column.values, len(column.texts)
    known = values[~np.isnan(values)]
    is_whole = bool((known % 1 == 0).all() and (known >= 0).all())
    is_own = is_whole and len(np.unique(known)) == len(known) > 2
    is_share = bool(((known >= 0) & (known <= 1)).all())
    is_in_line = is_own and len(known) == len(values) and bool((np.diff(values) == 1).all())
    is_year = is_whole and known.min() > 1900 and known.max() < 2100
    both = ~np.isnan(values) & (residues > 0)
    is_length = both.sum() > 2 and (values[both] == residues[both]).mean() > 0.95
    written = is_date(column) and any(sign in column.texts[0] for sign in "-/:")
    is_flag = {*np.unique(known).tolist()} <= {0.0, 1.0}
    is_rating = is_whole and not is_flag and distinct <= _MOST_RATINGS and terms.RATING.search(name)
    is_count = is_whole and (not is_flag or re.match(r"n \w+s\b", name)) and terms.COUNTS.search(name)
    are_set, are_groups = distinct <= max(_MOST_SETTINGS, len(known) // 3), distinct <= max(2, len(known) // 2)
    is_error = terms.UNCERTAINTY.search(name) and ((known >= 0).all() or terms.SIGNED.search(name))
    return (
        (is_in_line, "index", "it counts the rows"),
        (
            is_whole and (is_own or (not are_set and terms.WITHOUT_NAME.search(name))) and terms.INDEX.search(name),
            "index",
            "whole numbers, by its name those of rows",
        ),
        (is_length, "length", "the number of the protein's residues"),
        (written, "date", f"dates such as {column.texts[0]!r}"),
        (terms.PREDICTED.search(name), "prediction", _PREDICTED),
        (terms.PROBABILITY.search(name) and ("log" in name or is_share), "p-value", "by its name a significance"),
        (is_error, "uncertainty", "by its name the error of another number"),
        (
            terms.DESCRIPTORS.search(bare) or (is_whole and terms.PLACES.search(name)),
            "descriptor",
            _DESCRIBES,
        ),
        (is_year and terms.YEAR.search(name), "date", "years, by its name"),
        (is_count or terms.READS.search(name), "count", "by its name a count"),
        (terms.SET.search(name) or terms.SET.search(bare), "condition", f"{distinct} numbers, {_SET}"),
        (are_set and not is_flag and terms.CONDITION.search(name), "condition", f"{distinct} numbers, {_SET}"),
        (is_whole and terms.META.search(name), "note", _DESCRIBES),
        (is_rating, "note", f"{distinct} whole numbers, by its name how sure a row is"),
        (is_whole and terms.NUMBERED.search(name), "id", _IDS),
        (is_whole and are_groups and terms.GROUP.search(name), "group", f"{distinct} groups of rows, {_GROUP}"),
        (is_own and terms.IDENTIFIER.search(name), "id", _IDS),
    )


def _of_words(column: ColumnProfile, residues: NDArray[np.int64]) -> Sequence[_Rule]:
    """The rules of columns of words; the first that holds decides."""
    name, texts, count = terms.plain(column.name), column.texts, column.num_measured
    found = infer_task(column, residues)
    if found is not None and found.settings.get("level") == "residue":
        return ((terms.MASK.search(name), "mask", "by its name which residues were observed"),)
    others = [
        each not in STANDARD_RESIDUES and each not in _OTHERS and each.casefold() not in terms.THREE_LETTERS
        for each in texts
    ]
    are_residues = column.counts[others].sum() <= _FEW_OTHERS * count and not all(others)
    is_residue = are_residues and (len(texts) >= _LEAST_RESIDUES or terms.RESIDUE.search(name))
    is_group = len(texts) <= max(2, count // 2) and (terms.GROUP.search(name) or terms.LABEL.search(name))
    are_names = found is not None and found.settings["type"] in ("binary", "multiclass") and "yes" not in found.reason
    are_alleles = all(map(terms.ALLELE.match, texts))
    is_host = terms.HOST.search(name) and are_names
    are_kinds = column.counts[[text.casefold() in terms.KINDS for text in texts]].sum() > _MOSTLY * count
    are_notes = are_kinds or all(map(terms.SEGMENT.match, texts))
    is_note = are_notes or (terms.META.search(name) and found is not None)
    return (
        (is_date(column), "date", f"dates such as {texts[0]!r}"),
        (terms.OF_UNITS.search(name), "unit", "of which number is not said"),
        (
            (len(texts) > 2 or "smiles" in name) and is_molecules(column.name, texts),
            "molecule",
            "not read: the model sees proteins alone",
        ),
        (is_residue, "residue", "one amino acid in a cell: which one was replaced, or is there"),
        (terms.PREDICTED.search(name), "prediction", _PREDICTED),
        (column.name.strip().lower() in ID_COLUMNS, "id", "a usual name of ids"),
        (is_group, "group", f"{len(texts)} groups of rows, {_GROUP}"),
        (terms.CONDITION.search(name) or is_host or are_alleles, "condition", f"{len(texts)} texts, {_SET}"),
        (len(texts) > 0.9 * count and terms.IDENTIFIER.search(name), "id", "nearly as many texts as rows"),
        (terms.NUMBERED.search(name), "id", "by its name ids"),
        (is_note, "note", _DESCRIBES),
        (terms.MADE.search(name), "descriptor", "by its name how the protein was made or measured"),
    )


def infer_text_role(column: ColumnProfile) -> tuple[str, str]:
    """The role of a column that is no task."""
    texts = column.texts
    sample = texts[:_SAMPLE]
    for kind, (pattern, said) in HIDDEN.items():
        if sum(pattern.search(text) is not None for text in sample) > 0.8 * len(sample):
            return kind, f"{len(texts):,} texts, such as {sample[0][:40]!r}; {said}"
    if len(texts) > 0.9 * column.num_measured:
        return "id", f"{len(texts):,} texts, nearly as many as rows"
    return "text", f"{len(texts):,} texts in {column.num_measured:,} rows: too many for classes; --task reads them"


def is_date(column: ColumnProfile) -> bool:
    """Whether nearly all cells are dates."""
    texts = column.texts[:_SAMPLE]
    return sum(terms.DATE.fullmatch(text) is not None for text in texts) > 0.9 * len(texts)
