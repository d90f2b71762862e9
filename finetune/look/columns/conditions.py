"""Which columns differ between the rows of one sequence, and under which of them a task was measured.

In: columns, the record of each row, a task. Out: conditions of the task, and why others are none; what nearly tells its
classes. Kept: nothing.
"""

import re
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from finetune.look import terms
from finetune.look.column_profile import ColumnProfile
from finetune.look.infer_task import InferredTask

_KEY = 0.9
"""Share of the sequences with several rows in which all cells of a condition differ."""
_MISTAKES = 0.05
"""Share of the sequences with several rows in which cells may differ by mistake."""
_MOST_CONDITIONS = 50
_LEAST_OF_AN_OUTPUT = 10
"""Labels that an output has in the mean."""
_FOLLOWS = 0.2
"""Rows that another column does not tell, as a share of those that are not told without it."""
_LEAST_ROWS, _SHOWN = 10, 3
_BEGINNING, _MOST_SOURCES = re.compile(r"[\W_]*\d"), 12
"""Where the beginning of an id ends; sources that classes may come from."""


def varies(column: ColumnProfile, records: NDArray[np.int64]) -> bool:
    """Whether cells of a sequence with several rows differ, in more of these sequences than by mistakes."""
    has_blank = terms.MODIFICATION.search(terms.plain(column.name)) is not None
    rows = np.arange(len(records)) if has_blank else column.cells.rows
    torn, _, repeated = _cells_of_records(numbered(column)[rows], records[rows])
    return len(torn) > _MISTAKES * len(repeated)


def is_key(column: ColumnProfile, records: NDArray[np.int64]) -> bool:
    """Whether texts tell the rows of one sequence apart, in most sequences, of which most have several rows.

    Or, as of two conditions that were set together, whether each sequence has every text equally often.
    """
    if not 2 <= len(column.texts) <= min(_MOST_CONDITIONS, column.num_measured // 3):
        return False
    _, keyed, repeated = _cells_of_records(column.cells.which, records[column.cells.rows])
    rows = np.isin(records, repeated).sum()
    of, kinds = records[column.cells.rows], len(column.texts)
    numbers = (of * kinds + column.cells.which)[of >= 0]
    counts = np.bincount(numbers, minlength=(of.max(initial=0) + 1) * kinds).reshape(-1, kinds)[repeated]
    crossed = np.count_nonzero(counts.min(axis=1) == counts.max(axis=1))
    told: int = max(len(keyed), int(crossed))
    return len(repeated) > 2 and rows > column.num_rows / 2 and told >= _KEY * len(repeated)


def _cells_of_records(cells: NDArray[np.int64], of: NDArray[np.int64]) -> tuple[NDArray[np.int64], ...]:
    """Records whose cells differ, those all of whose cells differ, and those with several cells."""
    known = of >= 0
    rows = np.bincount(of[known], minlength=1)
    pairs = np.unique(np.stack([of[known], cells[known]]), axis=1)[0]
    texts = np.bincount(pairs, minlength=len(rows))
    return np.flatnonzero(texts > 1), np.flatnonzero((rows > 1) & (texts == rows)), np.flatnonzero(rows > 1)


def numbered(column: ColumnProfile) -> NDArray[np.int64]:
    """(R,) number of each row's text, -1 without one."""
    return column.cells.over_rows(np.arange(len(column.texts)), column.num_rows, -1)


def follows(values: NDArray[np.int64], groups: NDArray[np.int64]) -> bool:
    """Whether a group nearly tells the value of its rows, compared with the most frequent of all values.

    Args:
        values: (R,) number of each row's value, -1 without one.
        groups: (R,) number of each row's group, -1 without one; groups of single rows tell nothing.
    """
    known = (values >= 0) & (groups >= 0)
    _, of, sizes = np.unique(groups[known], return_inverse=True, return_counts=True)
    several = sizes[of] > 1
    values, of = values[known][several], of[several]
    if len(values) < _LEAST_ROWS:
        return False
    pairs, counts = np.unique(np.stack([of, values]), axis=1, return_counts=True)
    most = np.zeros(len(sizes), np.int64)
    np.maximum.at(most, pairs[0], counts)
    by_chance = len(values) - np.bincount(values).max()
    return bool(by_chance > 0 and len(values) - most.sum() < _FOLLOWS * by_chance)


def told_by(label: ColumnProfile, others: Sequence[ColumnProfile], residues: NDArray[np.int64]) -> str:
    """What nearly tells the class of each row, in words: few texts, beginnings of ids, or the length."""
    labels = numbered(label)
    deciles = np.quantile(residues, np.arange(0.1, 1, 0.1))
    found = ["the length of the protein"] * follows(labels, np.searchsorted(deciles, residues))
    for column in others:
        for texts in (column.texts, [_BEGINNING.split(text)[0] for text in column.texts]):
            names, of = np.unique(texts, return_inverse=True)
            are_few = 2 <= len(names) <= min(_MOST_SOURCES, column.num_measured // _LEAST_ROWS)
            if are_few and follows(labels, column.cells.over_rows(of, column.num_rows, -1)):
                found.append(repr(column.name))
    said = " and ".join(dict.fromkeys(found))
    return (
        f"; {said} nearly {'tell' if ' and ' in said else 'tells'} the class, and a model may learn that"
        if said
        else ""
    )


def give_conditions(
    task: InferredTask, label: ColumnProfile, conditions: Sequence[ColumnProfile], records: NDArray[np.int64]
) -> None:
    """Give a task the conditions under which it was measured, and add to its reason why others are none.

    A column that leaves too few labels to each output is none; nor is one that tells the class, or that the class
    tells: each output would have one class.
    """
    numbers, labels = {column.name: numbered(column) for column in conditions}, numbered(label)
    is_class = task.settings["type"] != "regression"
    rows = (labels >= 0) & (records >= 0)

    def distinct(*of: NDArray[np.int64]) -> int:
        return len(np.unique(np.stack(of)[:, rows], axis=1).T)

    def is_sparse(names: Sequence[str]) -> bool:
        of = [numbers[name] for name in names]
        return bool(of) and distinct(records, *of) < _LEAST_OF_AN_OUTPUT * distinct(*of)

    sparse = [name for name in numbers if is_sparse([name])]
    told = [
        name
        for name, of in numbers.items()
        if is_class and name not in sparse and (follows(of, labels) or follows(labels, of))
    ]
    kept = [name for name in numbers if name not in {*sparse, *told}]
    while is_sparse(kept):
        sparse.append(max(kept, key=lambda name: distinct(numbers[name])))
        kept.remove(sparse[-1])
    task.settings |= {"conditions": kept} if kept else {}
    rest = "sequences whose rows have different classes are left out" if is_class else "rows that differ are averaged"
    for names, said in ((told, "one class in each value of {}"), (sparse, "too many values of {} to learn each")):
        if names:
            more = [f"{len(names) - _SHOWN} more"] if len(names) > _SHOWN else []
            shown = " and ".join([*map(repr, sorted(names)[:_SHOWN]), *more])
            task.reason += f"; {said.format(shown)}: {rest}"
    if is_class and (told or sparse):
        task.settings["replicates"] = "leave_out"
