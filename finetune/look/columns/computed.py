"""Numbers that follow from the residues alone, such as a mass, a net charge or a number of mutations.

In: columns, the record of each row, the letters of each record. Out: (role, reason) by column. Kept: nothing. No name
says that one is: sums and means over residues are fitted to two records of three, and must give the numbers of the
third; differing residues are counted; or there is a column for nearly each amino acid.
"""

import re
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from data.alphabet import STANDARD_RESIDUES
from finetune.look import terms
from finetune.look.column_profile import ColumnProfile
from finetune.look.columns.relations import correlation

_MOST_RECORDS = 3000
_LEAST_TESTED = 8
"""Records whose numbers the others must give."""
_LEFT = 0.005
"""Share of the variance of records that were not fitted, up to which numbers are computed: digits were cut off."""
_LETTER = re.compile(rf"(?:^| )([a-z]|{'|'.join(sorted(terms.THREE_LETTERS))})(?: |$)")
_PAIR = re.compile(r"(?:^| )[acdefghiklmnpqrstvwy]{2}$")
_LETTERS = {*STANDARD_RESIDUES.lower(), *terms.THREE_LETTERS}
_LEAST_OF_A_FAMILY = 10
"""Amino acids of which there is a column each."""
_COUNTED = 0.9999
"""Correlation with the number of differing residues from which on a column is that number, or the identity."""
_MOSTLY = 0.9
"""Share of the proteins that have the length of their reference."""
_DIFFERS = "counted from the sequences: the residues in which each differs from one of them; it was not measured"
_SAID = "computed from the residues: their sum or their mean gives it, and it was not measured"


def of_amino_acids(columns: Sequence[ColumnProfile]) -> dict[str, tuple[str, str]]:
    """Columns of numbers whose names differ in an amino acid, or two neighbours, alone, of which there are most."""
    families: dict[str, dict[str, str]] = {}
    for each in (column for column in columns if column.numbers is not None):
        name = terms.plain(each.name)
        if letter := _LETTER.search(name):
            families.setdefault(name.replace(letter[0], " ", 1), {})[letter[1]] = each.name
        elif pair := _PAIR.search(name):
            families.setdefault(f"pairs {name.removesuffix(pair[0])}", {})[pair[0]] = each.name
    return {
        name: ("descriptor", f"one of {len(family)} columns, each of an amino acid")
        for base, family in families.items()
        if len(family) >= _LEAST_OF_A_FAMILY and (base.startswith("pairs") or family.keys() <= _LETTERS)
        for name in family.values()
    }


def computed(
    columns: Sequence[ColumnProfile],
    records: NDArray[np.int64],
    sequences: Sequence[str],
    others: Sequence[ColumnProfile] = (),
) -> dict[str, tuple[str, str]]:
    """The columns of numbers that no experiment was needed for.

    Args:
        columns: that may be labels.
        records: (R,) record of each row, -1 without one.
        sequences: (N,) letters of each record.
        others: columns of sequences that are not read, such as a wild type for each row.
    """
    used, first = np.unique(records, return_index=True)
    rows = first[used >= 0][:_MOST_RECORDS]
    letters = [np.frombuffer(sequences[record].encode("latin-1", "replace"), np.uint8) for record in records[rows]]
    counts = np.stack([np.bincount(each, minlength=256) for each in letters]).astype(np.float64)
    counts = np.column_stack([counts[:, counts.any(axis=0)], np.ones(len(rows))])
    shares = counts / np.maximum(counts[:, :-1].sum(axis=1, keepdims=True), 1)
    numeric = {each.name: each.values[rows] for each in columns if each.numbers is not None}
    differing = [*_from_one(letters, rows), *(_from_own(letters, other, rows) for other in others)]
    found = {name: ("descriptor", _DIFFERS) for name, values in numeric.items() if _counts(differing, values)}
    sums = (name for name, values in numeric.items() if any(_gives(terms, values) for terms in (counts, shares)))
    return found | dict.fromkeys(sums, ("descriptor", _SAID))


def _from_one(letters: Sequence[NDArray[np.uint8]], rows: NDArray[np.int64]) -> NDArray[np.float64]:
    """(2, rows) residues in which proteins differ from the commonest ones, and from the first; NaN of other lengths."""
    lengths = np.array([len(each) for each in letters])
    same = np.flatnonzero(lengths == np.bincount(lengths).argmax())
    block = np.stack([letters[at] for at in same.tolist()])
    kinds = np.unique(block)
    commonest = kinds[np.argmax([(block == kind).sum(axis=0) for kind in kinds], axis=0)]
    found = np.full((2, len(rows)), np.nan)
    found[:, same] = [(block != reference).sum(axis=1) for reference in (commonest, block[np.argmin(rows[same])])]
    return found


def _from_own(
    letters: Sequence[NDArray[np.uint8]], other: ColumnProfile, rows: NDArray[np.int64]
) -> NDArray[np.float64]:
    """(rows,) residues in which each protein differs from the row's cell of another column, NaN of other lengths."""
    cells = other.cells.over_rows(np.array(other.texts, object), other.num_rows, "")[rows]
    its = (np.frombuffer(cell.encode("latin-1", "replace"), np.uint8) for cell in cells)
    pairs = zip(letters, its, strict=True)
    return np.array([(mine != own).sum() if len(mine) == len(own) else np.nan for mine, own in pairs])


def _counts(differing: Sequence[NDArray[np.float64]], values: NDArray[np.float64]) -> bool:
    """Whether nearly all values are one of these numbers of differing residues, or a share of them."""
    for numbers in differing:
        known = ~np.isnan(numbers) & ~np.isnan(values)
        is_enough = known.sum() >= max(_LEAST_TESTED, _MOSTLY * np.sum(~np.isnan(values)))
        if is_enough and abs(correlation(numbers[known], values[known])) > _COUNTED:
            return True
    return False


def _gives(terms: NDArray[np.float64], values: NDArray[np.float64]) -> bool:
    """Whether a sum over terms, fitted to two of three values, is the third one."""
    known = ~np.isnan(values)
    terms, values = terms[known], values[known]
    is_third = np.arange(len(values)) % 3 == 2
    if is_third.sum() < _LEAST_TESTED or not np.ptp(values[is_third]):
        return False
    weights = np.linalg.lstsq(terms[~is_third], values[~is_third], rcond=None)[0]
    left = values[is_third] - terms[is_third] @ weights
    return bool(np.mean(left**2) <= _LEFT * np.var(values[is_third]))
