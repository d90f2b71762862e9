"""Several tables as one: their rows one below the other, and every column that one of them has.

In: tables, and the columns that each must have. Out: one `Table`, whose rows know which table they are of. Kept:
nothing. A sequence that stands in two tables is thus one record, and a column of one name is one column of labels.
"""

from collections.abc import Collection, Sequence
from pathlib import Path

from finetune.tables.location import Location
from finetune.tables.proteins import sequence_column
from finetune.tables.settings import TableSettings
from finetune.tables.table import Origin, Table


def joined(tables: Sequence[Table], settings: TableSettings, needed: Collection[tuple[str, str]] = ()) -> Table:
    """One table of all rows; a cell of a column that a row's table lacks is not there.

    Args:
        tables: at least one; a single one is returned as it is.
        settings: which columns say what a row's protein is: each table must have them.
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
    _require(tables, settings, needed)
    import pyarrow as pa

    cells = pa.concat_tables([table.cells for table in tables], promote_options="default")
    shorts = [_short(name) for name in names]
    if len(set(shorts)) < len(shorts):
        shorts = [f"table-{number}" for number in range(1, len(tables) + 1)]
    origins: list[Origin] = []
    lines: list[int] = []
    for table, short in zip(tables, shorts, strict=True):
        origins.append(Origin(table.name, short, table.row_word, len(lines)))
        lines += [table.number(row) for row in range(table.num_rows)]
    said = tuple(f"{table.name}: {line}" for table in tables for line in table.said)
    words = {table.row_word for table in tables}
    return Table(" and ".join(names), cells, 1, lines, said, words.pop() if len(words) == 1 else "row", tuple(origins))


def _require(tables: Sequence[Table], settings: TableSettings, needed: Collection[tuple[str, str]]) -> None:
    """Refuse a table that lacks a column which decides a row's protein, or one of those that are needed."""
    columns = [*needed]
    columns += [(name, "data.sequence") for name in settings.sequence]
    for setting in ("mutation", "protein", "id"):
        if (name := getattr(settings, setting)) is not None:
            columns.append((name, f"data.{setting}"))
    for table in tables:
        for name, asked_by in columns:
            table.require(name, asked_by)
    if settings.mutation is None and not settings.sequence:
        found = {sequence_column(table): table.name for table in reversed(tables)}
        if len(found) > 1:
            shown = ", ".join(f"{column!r} in {table}" for column, table in reversed(found.items()))
            raise ValueError(
                f"data.table: the column of sequences is {shown}; one name must hold for all tables: rename it in one"
            )


def _short(name: str) -> str:
    """The name of a table's file without folder and suffix."""
    location = Location.of(name)
    return Path(location.member or location.place).name.split(".")[0]
