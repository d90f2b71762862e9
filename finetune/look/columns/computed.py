"""Numbers that follow from the residues alone, such as a mass, a net charge or a mean hydrophobicity.

In: columns, the record of each row, what each record is made of. Out: (role, reason) by column. Kept: nothing. No name
says that one is: sums and means over residues are fitted to two records of three, and must give the numbers of the
third; or there is a column for nearly each amino acid.
"""

import re
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from data.alphabet import STANDARD_RESIDUES
from finetune.look import words
from finetune.look.column import Column

_MOST_RECORDS = 3000
_LEAST_A_TERM = 1.5
"""Records that are fitted, for each kind of residue."""
_LEFT = 0.005
"""Share of the variance of records that were not fitted, up to which numbers are computed: digits were cut off."""
_LETTER = re.compile(rf"(?:^| )([a-z]|{'|'.join(sorted(words.THREE_LETTERS))})(?: |$)")
_LETTERS = {*STANDARD_RESIDUES.lower(), *words.THREE_LETTERS}
_LEAST_OF_A_FAMILY = 10
"""Amino acids of which there is a column each."""
_SAID = "computed from the residues: their sum or their mean gives it, and it was not measured"


def of_amino_acids(columns: Sequence[Column]) -> dict[str, tuple[str, str]]:
    """Columns of numbers whose names differ in an amino acid alone, of which there is nearly each."""
    families: dict[str, dict[str, str]] = {}
    for each in (column for column in columns if column.numbers is not None):
        name = words.plain(each.name)
        if letter := _LETTER.search(name):
            families.setdefault(name.replace(letter[0], " ", 1), {})[letter[1]] = each.name
    return {
        name: ("descriptor", f"one of {len(family)} columns, each of an amino acid")
        for family in families.values()
        if len(family) >= _LEAST_OF_A_FAMILY and family.keys() <= _LETTERS
        for name in family.values()
    }


def computed(
    columns: Sequence[Column], records: NDArray[np.int64], composition: NDArray[np.int64]
) -> dict[str, tuple[str, str]]:
    """The columns of numbers that no experiment was needed for.

    Args:
        columns: that may be labels.
        records: (R,) record of each row, -1 without one.
        composition: (N, L) how often each letter stands in each record.
    """
    used, first = np.unique(records, return_index=True)
    rows = first[used >= 0][:_MOST_RECORDS]
    counts = composition[records[rows]].astype(np.float64)
    counts = np.column_stack([counts[:, counts.any(axis=0)], np.ones(len(rows))])
    shares = counts / np.maximum(counts[:, :-1].sum(axis=1, keepdims=True), 1)
    numeric = [column for column in columns if column.numbers is not None]
    found = [each for each in numeric if any(_gives(terms, each.values[rows]) for terms in (counts, shares))]
    return {each.name: ("descriptor", _SAID) for each in found}


def _gives(terms: NDArray[np.float64], values: NDArray[np.float64]) -> bool:
    """Whether a sum over terms, fitted to two of three values, is the third one."""
    known = ~np.isnan(values)
    terms, values = terms[known], values[known]
    is_third = np.arange(len(values)) % 3 == 2
    if len(values) - is_third.sum() < _LEAST_A_TERM * terms.shape[1] or not np.ptp(values[is_third]):
        return False
    weights = np.linalg.lstsq(terms[~is_third], values[~is_third], rcond=None)[0]
    left = values[is_third] - terms[is_third] @ weights
    return bool(np.mean(left**2) <= _LEFT * np.var(values[is_third]))
