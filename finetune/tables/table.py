"""A table of assays as text: every cell as it was written, every row with its number in the file.

In: nothing; this is the type. Kept: nothing.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pyarrow


@dataclass(frozen=True, slots=True)
class Table:
    """A table whose cells are text; what they mean is decided by those who read a column."""

    name: str
    """The location as the user gave it, for errors."""
    cells: "pyarrow.Table"
    """Columns of `pyarrow.string()`, in the order of the file. A cell that is not there is null; empty text stays."""
    first_row: int
    """Number of the first data row as a user counts (2 for a CSV with one header line, 1 for Parquet)."""

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
        return f"{self.name}: row {self.first_row + index}"
