"""A table in parts, for one that memory need not hold: the cells and row numbers that `read_table` gives.

In: a location. Out: `Table`s of consecutive rows, as often as they are asked for. Kept: nothing; memory holds one part.
Delimited text, FASTA and plain Parquet files are read as they come, decompressed if need be. What cannot be (sheets,
JSON, data sets, members of zip files, files joined by id) is read whole, then cut.
"""

import io
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path

from data.sources.tables import DATASETS
from data.transport.byte_stream import ByteStream, ChunkFile
from finetune.tables.columnar import parquet_parts
from finetune.tables.fasta import HeaderLayout, fasta_stream, record_table
from finetune.tables.layout import parse_table, table_of
from finetune.tables.location import TableLocation
from finetune.tables.read import DELIMITED, FASTA, is_fasta, read_table
from finetune.tables.table import Table
from finetune.tables.text import PARQUET, SkippedRows, TextRow, encoding_of, iterate_rows

_FIRST_LINES = 1000
"""Lines that show where the header is and what its columns are; more than are looked at."""
_FIRST_CHARACTERS = 1 << 16


@dataclass(frozen=True, slots=True)
class TableParts:
    """A table that is read once more each time its parts are asked for."""

    name: str
    columns: list[str]
    """Those of every part."""
    said: tuple[str, ...]
    """What the reader decided before it read the first row."""
    _read: Callable[[], Iterator[Table]]

    def __iter__(self) -> Iterator[Table]:
        """The parts; what stands in `said` of one of them was decided while it was read."""
        return self._read()


def table_parts(name: str, rows: int) -> TableParts:
    """The parts of a table of any format; encoding, header and columns are decided before the first one is asked for.

    Args:
        name: where it is; `finetune.tables.location` has the forms.
        rows: of each part but the last.

    Raises:
        ValueError: as for `finetune.tables.read.read_table`; for what is wrong with a row, when its part comes.
    """
    location = TableLocation.of(name)
    if location.suffix == ".parquet" and not location.member and _is_stored_as_it_is(location):
        location.require_only("a Parquet file")
        columns, read = parquet_parts(location.name, Path(location.place), rows)
        return TableParts(name, columns, (), read)
    is_joined = not location.parameters.keys() <= {"separator", "encoding", "header_lines"}
    is_text = location.suffix in (*FASTA, *DELIMITED, "") and not location.place.startswith(DATASETS)
    if is_joined or location.member or not is_text:
        return _cut(read_table(name), rows)
    location.require_file()

    def chunks() -> Iterator[bytes]:
        return ByteStream(location.place).chunks()

    text = _Text(location, chunks, *encoding_of(chunks, location.name, location.parameter("encoding")))
    begin = "".join(islice(text.lines(), 1000))[:_FIRST_CHARACTERS].lstrip()
    if is_fasta(location.suffix, begin):
        location.require_only("FASTA", "encoding")
        return _fasta_parts(text, rows)
    return _delimited_parts(text, rows)


def _cut(table: Table, rows: int) -> TableParts:
    """The parts of a table that is in memory."""

    def read() -> Iterator[Table]:
        for first in range(0, table.num_rows, rows):
            numbers = None if table.lines is None else table.lines[first : first + rows]
            cells = table.cells.slice(first, rows)
            yield Table(table.name, cells, table.first_row + first, numbers, (), table.row_word)

    return TableParts(table.name, table.columns, table.said, read)


@dataclass(frozen=True, slots=True)
class _Text:
    """A file of text."""

    location: TableLocation
    chunks: Callable[[], Iterator[bytes]]
    """Its bytes from the beginning."""
    encoding: str
    said: list[str]

    def lines(self, newline: str | None = "") -> Iterator[str]:
        """Its lines from the beginning."""
        return iter(io.TextIOWrapper(io.BufferedReader(ChunkFile(self.chunks())), self.encoding, newline=newline))


def _fasta_parts(text: _Text, rows: int) -> TableParts:
    name = text.location.name
    layout = HeaderLayout(fasta_stream(name, text.lines(None)))
    columns = record_table(name, [next(fasta_stream(name, text.lines(None)))], layout, 1).columns

    def read() -> Iterator[Table]:
        records, first = fasta_stream(name, text.lines(None)), 1
        while some := list(islice(records, rows)):
            yield record_table(name, some, layout, first)
            first += len(some)

    return TableParts(name, columns, (*text.said, *layout.said), read)


def _delimited_parts(text: _Text, rows: int) -> TableParts:
    location = text.location
    location.require_only("a table of text", "separator", "encoding", "header_lines")

    def opened() -> tuple[SkippedRows, list[TextRow], Iterator[TextRow], list[str]]:
        """Lines from the header on: those that decide, and those after them."""
        found, said = iterate_rows(text.lines(), location.name, location.parameter("separator"))
        kept = SkippedRows()
        return kept, kept.begun(list(islice(found, _FIRST_LINES))), found, said

    _, first, _, said = opened()
    head = parse_table(location.name, first, [*text.said, *said], location.parameter("header_lines", ("1", "2", "3")))
    num_above = len(first) - head.num_rows

    def read() -> Iterator[Table]:
        kept, begun, found, _ = opened()
        lines = chain(begun[num_above:], kept(found))
        some = list(islice(lines, rows))
        while some:
            following = list(islice(lines, rows))
            yield table_of(location.name, head.columns, some, () if following else kept.said)
            some = following

    return TableParts(location.name, head.columns, head.said, read)


def _is_stored_as_it_is(location: TableLocation) -> bool:
    """Whether a Parquet file can be read where it is: it is on a disk, and not compressed once more."""
    path = Path(location.place)
    if "://" in location.place or not path.is_file():
        return False
    with path.open("rb") as file:
        return file.read(4) == PARQUET
