"""Parts that a column names: 'train', 'valid', 'test', or the words that the recipe gives.

In: records, settings. Out: the part of each record, the rows that are in it, and notes. Kept: nothing.
"""

import difflib

import numpy as np
from numpy.typing import NDArray

from finetune.splits.parts import NAMES, TEST, TRAIN, UNUSED, VALIDATION
from finetune.splits.records import SplitRecords
from finetune.splits.settings import SplitSettings

USUAL = {
    "train": ("train", "training"),
    "validation": ("validation", "valid", "val", "dev", "development"),
    "test": ("test", "testing", "holdout", "hold-out", "held-out"),
    "unused": ("unused", "none", "nan", "na"),
}
"""Words that a column uses for a part, in any case."""
TRUE, FALSE = ("true", "t", "yes", "y", "1", "1.0"), ("false", "f", "no", "n", "0", "0.0", "nan", "na")


def by_column(records: SplitRecords, settings: SplitSettings) -> tuple[NDArray[np.int8], NDArray[np.bool_], list[str]]:
    """The part of each record by `split.column`, and of those of training that validate by `split.validation_column`.

    An empty cell is in no part, and so is a record all of whose rows are.

    Returns:
        (N,) parts; (rows,) whether a row is in the part of its record; and notes on what was left out or decided.

    Raises:
        ValueError: a value is no part; or a record is in two and `split.conflict` is "refuse". The message names rows.
    """
    of_row = _of_rows(records, settings)
    empty = np.flatnonzero((of_row == UNUSED) & (records.of_row >= 0))
    note = f"{len(empty):,} rows are in no part and give no label ({records.rows(empty)})"
    notes = [note] if len(empty) else []
    part, used = records.most_held_out(of_row)
    others = (of_row != UNUSED) & (records.of_row >= 0) & ~used
    torn = np.unique(records.of_row[others])
    if not len(torn):
        return part, used, notes
    if settings.conflict == "refuse":
        rows = np.flatnonzero((records.of_row == torn[0]) & (of_row != UNUSED)).tolist()
        sides = ", ".join(f"{records.table.shown(row)} ({NAMES[of_row[row]]})" for row in rows[:4])
        raise ValueError(
            f"{records.table.name}: split.column {settings.column!r} puts rows of one sequence in two parts: rows "
            f"{sides}; so it is with {len(torn):,} of {records.count:,} sequences. Choose split.conflict = 'held_out' "
            "(their rows are in the part that is held out more) or 'unused' (in none), or another split.by"
        )
    became = f"are in the part that is held out more; their {np.count_nonzero(others):,} other rows give no label"
    if settings.conflict == "unused":
        part[torn], became = UNUSED, "are in none"
    notes.append(f"{len(torn):,} sequences have rows in two parts and {became}")
    return part, used, notes


def _of_rows(records: SplitRecords, settings: SplitSettings) -> NDArray[np.int8]:
    """(rows,) the part of each row."""
    given = {name: getattr(settings, name) for name in ("train", "validation", "test", "unused")}
    parts = dict(zip(given, (TRAIN, VALIDATION, TEST, UNUSED), strict=True))
    exact = {word: parts[name] for name, words in given.items() for word in words}
    usual = {word: parts[name] for name in given if not given[name] for word in USUAL[name]}
    of_row = np.full(len(records.of_row), UNUSED, np.int8)
    unknown: dict[str, list[int]] = {}
    for row, text in enumerate(records.texts(settings.column, "split.column")):
        if text is None:
            continue
        found = exact.get(text, usual.get(text.lower()))
        if found is None:
            unknown.setdefault(text, []).append(row)
        else:
            of_row[row] = found
    if unknown:
        word, rows = next(iter(unknown.items()))
        near = difflib.get_close_matches(word, [*exact, *usual], 1)
        others = f" ({len(unknown) - 1} other values too)" if len(unknown) > 1 else ""
        allowed = (
            f"{f'the nearest is {near[0]!r}, ' if near else ''}allowed are {', '.join(map(repr, [*exact, *usual]))}"
        )
        raise ValueError(
            f"{records.rows(rows)}: split.column {settings.column!r} has {word!r}{others}, which is no part; "
            f"{allowed}: name it in split.train, split.validation, split.test or split.unused"
        )
    if settings.validation_column is not None:
        _validate(records, settings.validation_column, of_row)
    return of_row


def _validate(records: SplitRecords, column: str, of_row: NDArray[np.int8]) -> None:
    """Move the training rows for which a column is true to validation."""
    for row, text in enumerate(records.texts(column, "split.validation_column")):
        word = (text or "false").lower()
        if word not in TRUE + FALSE:
            raise ValueError(
                f"{records.table.row(row)}: split.validation_column {column!r} has {text!r}; it must be true or false"
            )
        if word in TRUE and of_row[row] == TRAIN:
            of_row[row] = VALIDATION
