"""A table as text, with columns added.

In: a table, cells. Out: a file, which appears whole or not at all. Kept: nothing.
"""

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from finetune.tables.table import Table
from zymogen.command_line.command import require_free
from zymogen.files.durable import write_csv


def require_place(out: Path, what: str, *, overwrites: bool) -> None:
    """Refuse a place at which `what` cannot be written as a table of text.

    Raises:
        ValueError: its suffix is of another format; it exists, or cannot be written to.
    """
    if out.suffix.lower() not in (".csv", ".tsv"):
        raise ValueError(f"-o {out}: {what} are written as a table of text; give it the suffix .csv or .tsv")
    require_free(out, overwrites=overwrites)


def free_name(name: str, taken: Collection[str], ending: str) -> str:
    """A name of a column that a table does not have: with an ending, as often as need be."""
    while name in taken:
        name += ending
    return name


def write_with_columns(table: Table, columns: Mapping[str, Sequence[str]], out: Path, remedy: str) -> None:
    """Write a table's own columns, each cell as it was, and after them others.

    Args:
        table: cells that are not there become empty ones.
        columns: name -> (rows,) cells.
        out: file to write or to replace; with the suffix .tsv tabs are between cells, otherwise commas.
        remedy: what to do about a folder that cannot be written to, for errors.

    Raises:
        ValueError: the disk is full, or the folder cannot be written to.
    """
    own = [column.to_pylist() for column in table.cells.columns]
    write_csv(out, [[*table.columns, *columns], *zip(*own, *columns.values(), strict=True)], remedy)
