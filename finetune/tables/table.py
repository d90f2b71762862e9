"""A table of assays as text: every cell as it was written, every row with its number in the file.

In: nothing; this is the type. Kept: nothing.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from data.recipe.setting import no_such_word

if TYPE_CHECKING:
    import pyarrow


class Origin(NamedTuple):
    """One of the tables that a table was joined from."""

    name: str
    """Its location as the user gave it."""
    short: str
    """What tells it from the others in names of rows: the name of its file, or its number."""
    row_word: str
    """What a row of it is called."""
    first: int
    """The index of its first row in the joined table."""


@dataclass(frozen=True, slots=True)
class Table:
    """A table whose cells are text; what they mean is decided by those who read a column."""

    name: str
    """The location as the user gave it, for errors."""
    cells: "pyarrow.Table"
    """Columns of `pyarrow.string()`, in the order of the file. A cell that is not there is null; empty text stays."""
    first_row: int
    """Number of the first data row as a user counts (2 for a CSV with one header line, 1 for Parquet)."""
    lines: Sequence[int] | None = None
    """(rows,) number of each row where they are not consecutive, as blank lines or comments stand between them."""
    said: tuple[str, ...] = ()
    """What the reader decided, such as separator and encoding: sentences for the user, without the table's name."""
    row_word: str = "row"
    """What a row is called in errors: "row", or "record" in a FASTA file."""
    origins: tuple[Origin, ...] = ()
    """The tables that it was joined from, by rising first row; none for a table that was read as it is."""

    @property
    def columns(self) -> list[str]:
        """Names of the columns, in the order of the file; no two are the same."""
        return list(self.cells.column_names)

    @property
    def num_rows(self) -> int:
        """Number of data rows."""
        return int(self.cells.num_rows)

    def row(self, index: int) -> str:
        """Where row `index`, from 0, is in the file, for errors."""
        origin = self.origin(index)
        name, word = (origin.name, origin.row_word) if origin else (self.name, self.row_word)
        return f"{name}: {word} {self.number(index)}"

    def origin(self, index: int) -> Origin | None:
        """The table that row `index` was joined from; None for a table that was read as it is."""
        return next((each for each in reversed(self.origins) if each.first <= index), None)

    def shown(self, index: int) -> str:
        """The number of row `index` as a user counts, with the table it is of where there are several."""
        origin = self.origin(index)
        return f"{self.number(index)} of {origin.name}" if origin else str(self.number(index))

    def id_of(self, index: int, given: str | None = None) -> str:
        """What row `index` is called: as it is given, or "row-17", after the name of its table where there are several.

        Args:
            index: of the row.
            given: its cell in a column of ids.
        """
        origin = self.origin(index)
        own = given if given is not None else f"{origin.row_word if origin else self.row_word}-{self.number(index)}"
        return f"{origin.short}:{own}" if origin else own

    def number(self, index: int) -> int:
        """Number of row `index`, from 0, as a user counts."""
        return int(self.first_row + index if self.lines is None else self.lines[index])

    def column(self, name: str) -> list[str | None]:
        """The cells of a column.

        Raises:
            ValueError: there is no such column; the nearest one is named.
        """
        self.require(name)
        cells: list[str | None] = self.cells.column(name).to_pylist()
        return cells

    def require(self, name: str, asked_by: str = "column") -> None:
        """Refuse the name of a column that the table does not have.

        Args:
            name: of the column.
            asked_by: the setting that names it.

        Raises:
            ValueError: there is no such column; the nearest one is named.
        """
        if name not in self.cells.column_names:
            raise ValueError(f"{self.name}: {no_such_word(asked_by, name, self.columns)}")
