"""Columns of numbers that follow from others: a sum, a ratio, the larger of two, a class where one of two holds.

In: columns. Out: column -> words. Kept: nothing. A formula is fitted and must give the numbers to their rounding.
"""

from collections.abc import Sequence
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from finetune.look import terms
from finetune.look.column_profile import ColumnProfile
from finetune.look.columns.relations import correlation

_UNEXPLAINED, _MOST_DERIVED, _MOST_OF_A_BASIS, _MOST_FITTED = 0.01, 20, 10, 300
"""Share of what one column leaves that two may leave; columns that are explained, columns and rows that explain."""
_ONE, _LEAST_ROWS = 0.9999, 20
"""Correlation with what others give, and rows, from which on numbers follow from others."""


def derived(columns: Sequence[ColumnProfile]) -> dict[str, str]:
    """Columns that follow from two others, or from all, in words. Those that look made of others come last."""

    def order(column: ColumnProfile) -> tuple[bool, bool, str]:
        is_called = terms.DERIVED.search(terms.plain(column.name)) is not None
        return is_called, bool(np.nanmin(column.values) < 0), column.name

    found: dict[str, str] = {}
    basis: list[ColumnProfile] = []
    numeric = [column for column in columns if column.numbers is not None][:_MOST_DERIVED]
    for column in sorted(numeric, key=order):
        for some in [*combinations(basis, 2), *([basis] if len(basis) > 2 else [])]:
            if column.name not in found and (said := _formula(column.values, [each.values for each in some])):
                names = " and ".join(repr(each.name) for each in some) if len(some) == 2 else f"{len(some)} others"
                found[column.name] = f"{said} {names}"
        if column.name not in found and len(basis) < _MOST_OF_A_BASIS:
            basis.append(column)
    return found


def _formula(values: NDArray[np.float64], others: Sequence[NDArray[np.float64]]) -> str:
    """How numbers follow from others, in words; empty if they do not, or nearly follow from one of them alone."""
    known = np.flatnonzero(~np.isnan([values, *others]).any(axis=0))[:_MOST_FITTED]
    if len(known) < _LEAST_ROWS + len(others):
        return ""
    a, b = values[known], np.array(others)[:, known]
    log_a, logs = (np.log(np.where(each > 0, each, 1)) for each in (a, b))
    forms = {
        "a sum, mean or difference of": (a, b),
        "the largest of": (a, b.max(axis=0)),
        "the smallest of": (a, b.min(axis=0)),
        "a ratio or product of": (log_a, logs),
        "the logarithm of a ratio or product of": (a, logs),
    }
    least = 1 - (1 - max(abs(correlation(a, each)) for each in b)) * _UNEXPLAINED
    fit = (said for said, of in forms.items() if correlation(of[0], _fitted(*of)) > max(_ONE, least))
    return next(fit, "")


def _fitted(target: NDArray[np.float64], terms: NDArray[np.float64]) -> NDArray[np.float64]:
    """The weighted sum of terms and a constant that is nearest to the target."""
    design = np.column_stack([*np.atleast_2d(terms), np.ones(len(target))])
    return np.asarray(design @ np.linalg.lstsq(design, target, rcond=None)[0])
