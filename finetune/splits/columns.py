"""Parts by a column: the names of parts in it ('train', 'valid', 'test', or the recipe's words), or its times.

In: records, settings. Out: the part of each record, which rows are in the part of their record, and notes. Kept:
nothing. By time, earlier measurements train and later ones are tested.
"""

import re
from datetime import UTC, datetime

import numpy as np
from numpy.typing import NDArray

from finetune.splits.parts import NAMES, TEST, TRAIN, UNUSED, VALIDATION, SplitRecords
from finetune.splits.settings import SplitSettings
from finetune.tables.numbers import number_of
from zymogen.settings.section import unknown_word

PART_WORDS = {
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
    """(rows,) the part of each row; training rows for which `split.validation_column` is true validate."""
    given = {name: getattr(settings, name) for name in ("train", "validation", "test", "unused")}
    parts = dict(zip(given, (TRAIN, VALIDATION, TEST, UNUSED), strict=True))
    exact = {word: parts[name] for name, words in given.items() for word in words}
    usual = {word: parts[name] for name in given if not given[name] for word in PART_WORDS[name]}
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
        others = f" ({len(unknown) - 1} other values too)" if len(unknown) > 1 else ""
        raise ValueError(
            f"{records.rows(rows)}: no part of a split{others}: "
            f"{unknown_word(f'split.column {settings.column!r}', word, [*exact, *usual])}: name it in split.train, "
            "split.validation, split.test or split.unused"
        )
    column = settings.validation_column
    for row, text in enumerate(records.texts(column, "split.validation_column") if column else ()):
        word = (text or "false").lower()
        if word not in TRUE + FALSE:
            raise ValueError(
                f"{records.table.row(row)}: split.validation_column {column!r} has {text!r}; it must be true or false"
            )
        if word in TRUE and of_row[row] == TRAIN:
            of_row[row] = VALIDATION
    return of_row


_TWO_NUMBERS_AND_A_YEAR = re.compile(r"(\d{1,2})[./-](\d{1,2})[./-](\d{4})")


_YEAR_FIRST = re.compile(r"(\d{4})[/-](\d{1,2})(?:[/-](\d{1,2}))?")


_DAY_S = 86_400.0


_ADVICE = "write dates as 2021-04-03, or numbers that rise with time"


def by_time(records: SplitRecords, settings: SplitSettings) -> tuple[NDArray[np.int8], NDArray[np.bool_], list[str]]:
    """The part of each record by the time of its *last* row, so that no row that trains is later than a cut.

    Rows of the record that are earlier than the beginning of its part give no label, nor do rows without a time.

    Without `split.cuts`, times are cut where `split.fractions` come closest; records of one time stay together.

    Returns:
        (N,) parts, `UNUSED` for a record without a time; (rows,) whether a row is in the part of its record; and notes.

    Raises:
        ValueError: a cell is no date or number, or may be two dates; the message names its row.
    """
    texts = records.texts(settings.column, "split.column")
    read = _TimeParser(records, settings.column, texts)
    last, time = np.full(records.count, -np.inf), np.full(len(texts), -np.inf)
    rows = np.array([row for row, text in enumerate(texts) if text and records.of_row[row] >= 0], np.int64)
    time[rows] = [read(texts[row] or "", row) for row in rows.tolist()]
    np.maximum.at(last, records.of_row[rows], time[rows])
    timed = np.isfinite(last)
    undated = np.flatnonzero((records.of_row >= 0) & np.isinf(time))
    notes = [f"{np.count_nonzero(~timed):,} records have no time and are unused"] if not timed.all() else []
    notes += [f"{len(undated):,} rows have no time and give no label ({records.rows(undated)})"] if len(undated) else []
    cuts = [read(text, None) for text in settings.cuts] or _cuts(last[timed], settings.fractions)
    if sorted(cuts) != cuts:
        raise ValueError(f"split.cuts is {settings.cuts!r}; validation must begin before test does")
    test, validation = cuts[-1], cuts[0] if len(cuts) == 2 else np.inf
    of_row = np.where(time >= test, TEST, np.where(time >= validation, VALIDATION, TRAIN))
    part, used = records.most_held_out(np.where(np.isinf(time), UNUSED, of_row).astype(np.int8))
    if early := np.count_nonzero(~used & np.isfinite(time)):
        notes.append(f"{early:,} rows are earlier than the part of their sequence and give no label")
    shown = " and ".join(read.shown(cut) for cut in cuts if np.isfinite(cut))
    notes.append(f"by {settings.column}: cut at {shown}")
    return part, used, notes


def _cuts(times: NDArray[np.float64], fractions: tuple[float, ...]) -> list[float]:
    """First times of validation and of test at which the shares come closest to `fractions`."""
    if not len(times):
        return [np.inf, np.inf]
    values, counts = np.unique(times, return_counts=True)
    before = np.concatenate([[0], np.cumsum(counts)]) / len(times)
    starts = np.append(values, np.inf)
    wanted = fractions[0], fractions[0] + fractions[1]
    return [float(starts[np.argmin(np.abs(before - share))]) for share in wanted]


class _TimeParser:
    """Reads the times of a column: all of them numbers, or all of them dates of one form."""

    def __init__(self, records: SplitRecords, column: str | None, texts: list[str | None]) -> None:
        self._records, self._column = records, column
        present = [text for text in texts if text]
        self._numbers = bool(present) and None not in map(number_of, present)
        places = [found.groups() for text in present if (found := _TWO_NUMBERS_AND_A_YEAR.fullmatch(text))]
        day_first = any(int(first) > 12 for first, _, _ in places)
        month_first = any(int(second) > 12 for _, second, _ in places)
        self._day_first = None if day_first == month_first else day_first

    def __call__(self, text: str, row: int | None) -> float:
        """Seconds since 1970, or the number itself."""
        if self._numbers:
            if (number := number_of(text)) is not None:
                return number
            raise ValueError(f"{self._where(row)} has {text!r}, and the column holds numbers; give a number")
        date = text
        if found := _TWO_NUMBERS_AND_A_YEAR.fullmatch(text):
            first, second, year = map(int, found.groups())
            first_is_month, first_is_day = f"{year:04}-{first:02}-{second:02}", f"{year:04}-{second:02}-{first:02}"
            if self._day_first is None and first != second:
                both = f"{first_is_day} or {first_is_month}"
                raise ValueError(f"{self._where(row)} has {text!r}, which may be {both}; {_ADVICE}")
            date = first_is_day if self._day_first else first_is_month
        elif found := _YEAR_FIRST.fullmatch(text):
            year, month, day = (int(each or 1) for each in found.groups())
            date = f"{year:04}-{month:02}-{day:02}"
        try:
            moment = datetime.fromisoformat(date)
        except ValueError:
            raise ValueError(f"{self._where(row)} has {text!r}, which is no date or number; {_ADVICE}") from None
        return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()

    def shown(self, value: float) -> str:
        """A time as the column writes it."""
        if self._numbers:
            return f"{value:g}"
        moment = datetime.fromtimestamp(value, UTC)
        return moment.date().isoformat() if value % _DAY_S == 0 else moment.isoformat()

    def _where(self, row: int | None) -> str:
        return "split.cuts" if row is None else f"{self._records.table.row(row)}: {self._column!r}"
