"""A table of assays as text: every cell as it was written, every row with its number in the file.

In: cells; or several tables, and the columns that each must have. Out: a `Table`, whose rows know which table they are
of, and every column that one of them has. Kept: nothing. A sequence that stands in two tables is thus one record, and a
column of one name is one column of labels.
"""

import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from data.sources.tables import ID_COLUMNS, SEQUENCE_COLUMNS
from finetune.tables.location import TableLocation
from finetune.tables.settings import TableSettings
from zymogen.settings.origin import format_option
from zymogen.settings.section import unknown_word

if TYPE_CHECKING:
    import pyarrow


_SHOWN_COLUMNS, _NAME = 12, 40
"""Names of columns that an error shows, and the letters of each: a file without a header has cells for names."""

SOURCE_TABLE, SOURCE_PART = "source_table", "source_part"
"""Columns of several tables: the name of each row's file, and the part of a split that stands in it."""
_PART = re.compile(r"(?:^|[_ -])(train(?:ing)?|valid(?:ation)?|val|dev|test(?:ing)?)(?=$|[_ -])", re.I)
_ROW_NUMBER = re.compile(r"(?:.*:)?(?:row|record)-\d+", re.S)


class TableOrigin(NamedTuple):
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
    origins: tuple[TableOrigin, ...] = ()
    """The tables that it was joined from, by rising first row; none for a table that was read as it is."""

    @property
    def columns(self) -> list[str]:
        """Names of the columns, in the order of the file; no two are the same."""
        return list(self.cells.column_names)

    @property
    def shown_columns(self) -> str:
        """The first names of columns, each cut to a few words, for errors."""
        more = ", ..." if len(self.columns) > _SHOWN_COLUMNS else ""
        return ", ".join(map(truncate_cell, self.columns[:_SHOWN_COLUMNS])) + more

    @property
    def num_rows(self) -> int:
        """Number of data rows."""
        return int(self.cells.num_rows)

    def row(self, index: int) -> str:
        """Where row `index`, from 0, is in the file, for errors."""
        origin = self.origin(index)
        name, word = (origin.name, origin.row_word) if origin else (self.name, self.row_word)
        return f"{name}: {word} {self.number(index)}"

    def origin(self, index: int) -> TableOrigin | None:
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

    def cut(self, rows: int) -> "Iterator[Table]":
        """Tables of so many consecutive rows, without what the reader decided."""
        for first in range(0, self.num_rows, rows):
            lines = None if self.lines is None else self.lines[first : first + rows]
            yield replace(
                self, cells=self.cells.slice(first, rows), first_row=self.first_row + first, lines=lines, said=()
            )

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
            raise ValueError(
                f"{self.name}: {unknown_word(asked_by, name, [truncate_cell(each) for each in self.columns])}"
            )


def sequence_column(table: Table) -> str:
    """The column that has a usual name of a sequence.

    Raises:
        ValueError: there is none, or more than one.
    """
    found = [column for column in table.columns if column.strip().lower() in SEQUENCE_COLUMNS]
    if len(found) == 1:
        return found[0]
    raise ValueError(
        f"{table.name}: which column is the protein? {len(found)} of its columns have one of the usual names "
        f"({', '.join(SEQUENCE_COLUMNS)}); it has {table.shown_columns}. Name one"
        f"{format_option('data.sequence', before=' with ')}, or the column of mutations"
        f"{format_option('data.mutation', before=' with ')}{format_option('data.wild_type', before=' and ')}"
    )


def concatenate_tables(
    tables: Sequence[Table], settings: TableSettings | None, needed: Collection[tuple[str, str]] = ()
) -> Table:
    """One table of all rows; a cell of a column that a row's table lacks is not there.

    Files such as ``positive.fasta`` and ``negative.fasta`` say by their names what their rows are: they become columns.

    Args:
        tables: at least one; a single one is returned as it is.
        settings: which columns say what a row's protein is: each table must have them; None where that is not known.
        needed: (column, setting that names it) of other columns that each table must have.

    Raises:
        ValueError: a table is named twice, or lacks a column that all must have; the message names table and column.
    """
    if len(tables) == 1:
        return tables[0]
    names = [table.name for table in tables]
    for name in names:
        if names.count(name) > 1:
            raise ValueError(f"data.table names {name} {names.count(name)} times; name each table once")
    shorts = [_short(name) for name in names]
    tables = _with_sources(tables, shorts)
    if settings is not None:
        _require(tables, settings, needed)
    import pyarrow as pa

    cells = pa.concat_tables([table.cells for table in tables], promote_options="default")
    if len(set(shorts)) < len(shorts):
        shorts = [f"table-{number}" for number in range(1, len(tables) + 1)]
    origins: list[TableOrigin] = []
    lines: list[int] = []
    for table, short in zip(tables, shorts, strict=True):
        origins.append(TableOrigin(table.name, short, table.row_word, len(lines)))
        lines += [table.number(row) for row in range(table.num_rows)]
    said = tuple(f"{table.name}: {line}" for table in tables for line in table.said)
    words = {table.row_word for table in tables}
    return Table(" and ".join(names), cells, 1, lines, said, words.pop() if len(words) == 1 else "row", tuple(origins))


def _with_sources(tables: Sequence[Table], shorts: Sequence[str]) -> list[Table]:
    """Tables with columns of what the names of their files say, where these differ and are not there already."""
    import pyarrow as pa

    parts = [_PART.search(short) for short in shorts]
    said = {SOURCE_TABLE: list(shorts)}
    if all(parts):
        said = {SOURCE_TABLE: [_PART.sub("", short).strip("_ -") for short in shorts]}
        said[SOURCE_PART] = [part[1].lower() for part in parts if part]
    found = list(tables)
    for column, texts in said.items():
        if len({*texts}) > 1 and not any(column in table.columns for table in tables):
            for at, table in enumerate(found):
                cells = pa.repeat(pa.scalar(texts[at], pa.string()), table.num_rows)
                found[at] = replace(table, cells=table.cells.append_column(column, cells))
    return found


def _require(tables: Sequence[Table], settings: TableSettings, needed: Collection[tuple[str, str]]) -> None:
    """Refuse a table that lacks a column which decides a row's protein, or one of those that are needed."""
    single = [(settings.protein, "data.protein"), (settings.id, "data.id")]
    columns = [
        *needed,
        *((name, "data.sequence") for name in settings.sequence),
        *((name, "data.mutation") for name in settings.mutation),
        *((name, asked_by) for name, asked_by in single if name is not None),
    ]
    for table in tables:
        for name, asked_by in columns:
            table.require(name, asked_by)
    if not (settings.mutation or settings.sequence):
        found = {sequence_column(table): table.name for table in reversed(tables)}
        if len(found) > 1:
            shown = ", ".join(f"{column!r} in {table}" for column, table in reversed(found.items()))
            raise ValueError(
                f"data.table: the column of sequences is {shown}; one name must hold for all tables: rename it in one"
            )


def _short(name: str) -> str:
    """The name of a table's file without folder and suffix."""
    location = TableLocation.of(name)
    return Path(location.member or location.place).name.split(".")[0]


def truncate_cell(name: str, most: int = _NAME) -> str:
    """The first letters of a name that is longer than `most`."""
    return name if len(name) <= most else f"{name[: most - 3]}..."


def are_row_numbers(ids: Iterable[str]) -> bool:
    """Whether ids are numbers of rows, which say nothing of another table, or of this one with a row more."""
    return all(map(_ROW_NUMBER.fullmatch, ids))


def ids_of(table: Table, settings: TableSettings, rows: Sequence[Sequence[int]], said: list[str]) -> tuple[str, ...]:
    """A name for each record: from the column that is named, or a usual one that tells records apart, or its row.

    Of several rows it is the first one in the order of texts, so that it does not depend on the order of rows.

    Args:
        table: the table.
        settings: which column names proteins, if any.
        rows: the rows of each record, rising.
        said: gets sentences for the user.

    Raises:
        ValueError: the column that is named has an empty cell, or one id for two proteins.
    """
    first_rows = [of_record[0] for of_record in rows]
    named = settings.id
    if named is not None:
        table.require(named, format_option("data.id") or "column")
    by_name = {column.strip().lower(): column for column in reversed(table.columns)}
    usual = [by_name[name] for name in ID_COLUMNS if name in by_name]
    for column in [named] if named else [*usual, *settings.mutation[:1]]:
        cells = table.column(column)
        given = [{index: " ".join((cells[index] or "").split()) for index in of_record} for of_record in rows]
        ids = [min(filter(None, of_record.values()), default="") for of_record in given]
        of_id = Counter(ids)
        if all(ids) and len(of_id) < len(ids) and table.origins:  # an id may be of another protein in another table
            ids = [min(table.id_of(index, each) for index, each in of.items() if each) for of in given]
            of_id = Counter(ids)
        if all(ids) and len(of_id) == len(ids):
            return tuple(ids)
        if named is None:
            continue
        if not all(ids):
            raise ValueError(f"{table.row(first_rows[ids.index('')])}: its id, in column {named!r}, is empty; fill it")
        twice = next(each for each in ids if of_id[each] > 1)
        first, second, *_ = [first_rows[at] for at, each in enumerate(ids) if each == twice]
        raise ValueError(
            f"{table.row(second)}: the id {twice!r}, in column {named!r}, is that of {table.row_word} "
            f"{table.shown(first)} too, which has another protein; give each protein its own id, or leave data.id out"
        )
    if usual and named is None:
        said.append(f"the column {usual[0]!r} does not tell proteins apart, so that they are called by their rows")
    return tuple(table.id_of(index) for index in first_rows)
