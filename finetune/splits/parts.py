"""Parts: which part of the data each record is in, its fold, and what is held out together with it.

In: arrays over records, and which rows each is made of. Out: `SplitParts` with a fingerprint; errors that name rows.
Kept: nothing. NumPy alone.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from data.store.token_store import TokenStore, new_hash
from finetune.tables.table import Table
from zymogen.settings.section import listed

_SHOWN = 3


@dataclass(frozen=True, slots=True)
class SplitRecords:
    """The N records of a table: distinct sequences, or distinct molecules where a table has no protein."""

    table: Table
    of_row: NDArray[np.int64]
    """(rows,) the record of each row of the table; -1 for a row that is in none."""
    digests: NDArray[np.uint64]
    """(N,) digest of what makes the record, no two equal; of a protein, before it was cut."""
    store: TokenStore | None = None
    """The token store; None for a table without proteins."""

    @property
    def count(self) -> int:
        """Number of records, N."""
        return len(self.digests)

    def texts(self, column: str | None, setting: str) -> list[str | None]:
        """(rows,) the cells of the column that a setting names, without blanks around them; None for an empty one.

        Raises:
            ValueError: the table has no such column; the message names the nearest one.
        """
        assert column is not None, f"{setting} is required of this split"
        self.table.require(column, setting)
        return [text.strip() or None if text else None for text in self.table.column(column)]

    def rows(self, rows: NDArray[np.int64] | list[int]) -> str:
        """A few rows for an error or a note: the first three as a user counts them, and how many more there are."""
        shown = listed([self.table.shown(int(row)) for row in rows], _SHOWN)
        return f"{self.table.name}: {self.table.row_word}{'s' if len(rows) > 1 else ''} {shown}"

    def most_held_out(self, of_row: NDArray[np.int8]) -> tuple[NDArray[np.int8], NDArray[np.bool_]]:
        """The part of each record from those of its rows, and which rows are in the part of their record.

        A record is in the part that is held out most: test, then validation, then training.

        Args:
            of_row: (rows,) the part of each row, `UNUSED` for one that is in none.

        Returns:
            (N,) parts, `UNUSED` for a record none of whose rows has one; (rows,) which rows may give labels.
        """
        part = np.full(self.count, UNUSED, np.int8)
        used = (of_row != UNUSED) & (self.of_row >= 0)
        np.maximum.at(part, self.of_row[used], of_row[used])  # the part that is held out most has the highest number
        used[used] = of_row[used] == part[self.of_row[used]]
        return part, used


TRAIN, VALIDATION, TEST, UNUSED = 0, 1, 2, -1
NAMES = ("train", "validation", "test", "unused")
"""Name of each part; ``NAMES[UNUSED]`` is the last."""
NO_FOLD = -1


@dataclass(frozen=True, slots=True)
class SplitParts:
    """The parts of N records, in the order of the token store."""

    part: NDArray[np.int8]
    """(N,) `TRAIN`, `VALIDATION`, `TEST` or `UNUSED`. With folds, a record that has one is `TRAIN` here."""
    fold: NDArray[np.int16]
    """(N,) the fold in which the record is predicted; `NO_FOLD` where there is none."""
    group: NDArray[np.int64]
    """(N,) what is held out together, from 0 in the order of lowest digests."""
    digests: NDArray[np.uint64]
    """(N,) digest of what makes each record."""
    fingerprint: str
    """Hash of all of the above, whatever the order of the records."""

    @property
    def num_folds(self) -> int:
        """Number of folds, 0 without any."""
        return int(self.fold.max(initial=NO_FOLD)) + 1

    def records(self, part: int) -> NDArray[np.int64]:
        """The records of a part, rising."""
        return np.flatnonzero(self.part == part)

    def counts(self) -> dict[str, int]:
        """Number of records of each part, by its name."""
        return {name: int(np.count_nonzero(self.part == part)) for part, name in zip((0, 1, 2, -1), NAMES, strict=True)}

    def of_fold(self, fold: int) -> "SplitParts":
        """The parts of the run that predicts one fold: that one is tested, the next one validates, the others train.

        A record without a fold keeps its part: it trains in every run, or is unused in all.

        Args:
            fold: in ``[0, num_folds)``.
        """
        part = np.where(self.fold == NO_FOLD, self.part, TRAIN).astype(np.int8)
        part[self.fold == fold] = TEST
        part[self.fold == (fold + 1) % self.num_folds] = VALIDATION
        mark = new_hash(f"{self.fingerprint} {fold}".encode()).hexdigest()
        return SplitParts(part, self.fold, self.group, self.digests, mark)


def parts_of(
    digests: NDArray[np.uint64],
    part: NDArray[np.signedinteger],
    group: NDArray[np.signedinteger] | None = None,
    fold: NDArray[np.signedinteger] | None = None,
) -> SplitParts:
    """Parts of records whose contents have these digests.

    Args:
        digests: (N,) digest of what makes a record: its sequence, or the molecule where there is none.
        part: (N,) part of each.
        group: (N,) any numbers, equal where records are held out together; without it each is on its own.
        fold: (N,) folds from 0, or `NO_FOLD`.

    Raises:
        ValueError: a group is on two sides; the message names two of its records, from 0.
    """
    count = len(digests)
    order = np.argsort(digests)
    group = np.arange(count) if group is None else group
    group = in_order_of_first(group[order])[np.argsort(order)]
    fold = np.full(count, NO_FOLD) if fold is None else fold
    part, fold = part.astype(np.int8), fold.astype(np.int16)
    _require_whole_groups(part, fold, group)
    content = new_hash(b"zymogen.parts/2")
    for array, dtype in ((digests, "<u8"), (part, "<i1"), (fold, "<i2"), (group, "<i8")):
        content.update(np.ascontiguousarray(array[order], dtype).tobytes())
    return SplitParts(part, fold, group.astype(np.int64), digests, content.hexdigest())


def in_order_of_first(values: NDArray[np.generic]) -> NDArray[np.int64]:
    """Equal values as equal numbers, from 0 in the order in which each is first met."""
    _, first, inverse = np.unique(values, return_index=True, return_inverse=True)
    rank = np.empty(len(first), np.int64)
    rank[np.argsort(first)] = np.arange(len(first))
    return np.asarray(rank[inverse])


def require_filled(parts: SplitParts, wanted: Sequence[str], advice: str, folds: int = 0) -> None:
    """Refuse a split in which a wanted part or a fold is empty.

    Args:
        parts: the split.
        wanted: names of parts that must have records; ignored where there are folds.
        advice: what to change, for the error.
        folds: number of folds that were asked for; the split may have more.

    Raises:
        ValueError: with the number of records of every part, or of every fold.
    """
    if parts.num_folds or folds:
        of_folds = np.bincount(parts.fold[parts.fold >= 0], minlength=folds)
        if of_folds.all():
            return
        raise ValueError(f"the folds have {', '.join(map(str, of_folds))} records; none may be empty: {advice}")
    counts = parts.counts()
    empty = [name for name in wanted if not counts[name]]
    if empty:
        found = ", ".join(f"{name} {count}" for name, count in counts.items())
        raise ValueError(f"the split leaves no record for {' and '.join(empty)} ({found}): {advice}")


def _require_whole_groups(part: NDArray[np.int8], fold: NDArray[np.int16], group: NDArray[np.int64]) -> None:
    used = np.flatnonzero(part != UNUSED)
    side = part[used].astype(np.int64) * (1 << 16) + fold[used]
    order = np.lexsort((used, group[used]))
    of_group, of_side = group[used][order], side[order]
    torn = np.flatnonzero((of_group[1:] == of_group[:-1]) & (of_side[1:] != of_side[:-1]))
    if len(torn):
        first, second = used[order[torn[0]]], used[order[torn[0] + 1]]
        of_first, of_second = (NAMES[part[r]] if fold[r] < 0 else f"fold {fold[r]}" for r in (first, second))
        raise ValueError(
            f"records {first} and {second} are of one group and stand on two sides, {of_first} and {of_second}: give "
            "both one side, or other groups"
        )
