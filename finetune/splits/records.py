"""Records as a split sees them: which rows each is made of, and what makes it.

In: nothing; this is the type. Out: errors that name rows. Kept: nothing.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from data.store.token_store import TokenStore
from finetune.splits.parts import UNUSED
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
