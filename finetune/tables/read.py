"""Any table that people have, as text: its suffix and content decide who reads it, whole or in parts.

In: a location (`finetune.tables.location`). Out: a `Table` of all rows; or `TableParts`, tables of consecutive rows, as
often as they are asked for. Kept: nothing. Parts of delimited text, FASTA and plain Parquet files are read as they
come, so that memory holds one part. What cannot be (sheets, JSON, data sets, members of zip files, files joined by id)
is read whole, then cut.
"""

import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import chain, islice
from pathlib import Path

from data.sources.fasta import FastaSource
from data.sources.tables import DATASETS, LOADERS, TableSource
from data.transport.byte_stream import ByteStream
from finetune.tables.columnar import dataset_table, parquet_parts, sheet_table
from finetune.tables.fasta import FastaRecord, HeaderLayout, fasta_stream, record_table, with_labels, with_mask
from finetune.tables.layout import parse_table, table_of
from finetune.tables.location import TableLocation
from finetune.tables.table import Table
from finetune.tables.text import PARQUET, SkippedRows, TextFile, TextRow, iterate_rows

FASTA = FastaSource.suffixes
DELIMITED = (".csv", ".tsv", ".txt", ".tab")
SHEETS = (".xlsx", ".xlsm")
_RECORD = re.compile(r"\s*>[^\r\n]*[\r\n]\s*[A-Za-z*-]+\s*(?:[\r\n]|\Z)")
_TABLES = (*DELIMITED, *FASTA, *SHEETS, *LOADERS)
_FIRST_LINES = 1000
"""Lines that show where the header is and what its columns are; more than are looked at."""
_FIRST_CHARACTERS = 1 << 16
_WHOLE = sys.maxsize
"""Rows of the one part that is a whole table."""


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


def read_table(name: str) -> Table:
    """A table of any format, every cell as text.

    Args:
        name: where it is; `finetune.tables.location` has the forms.

    Raises:
        ValueError: it does not exist, cannot be read, has no row, or a row that does not fit its header.
    """
    location = TableLocation.of(name)
    if not location.member and location.suffix == ".zip" and "://" not in location.place:
        location = location.member_named(_TABLES)
    suffix = location.suffix
    if suffix in (".xls", ".ods"):
        raise ValueError(f"{name}: {suffix} files are not read; save it as .xlsx or .csv")
    if location.place.startswith(DATASETS) or suffix in (".json", ".jsonl"):
        location.require_only("JSON and data sets")
        if location.member:
            raise ValueError(f"{name}: JSON inside a zip file is not read; unpack it")
        source = TableSource(location.place, suffix if suffix in LOADERS else "", "refuse")
        files = source.csv_files()
        if len(files) > 1:
            raise ValueError(f"{name}: consists of {len(files)} CSV files; name each as a table, such as {files[0]!r}")
        return replace(read_table(files[0]), name=name) if files else dataset_table(location, source)
    if suffix in SHEETS:
        location.require_only("an Excel file", "sheet", "header_lines")
        return sheet_table(location)
    content = location.read()
    if suffix == ".parquet":
        return _whole(_parquet_parts(location, content, _WHOLE))
    table = _whole(_text_parts(location, lambda: iter([content]), _WHOLE))
    labels, mask = location.parameter("labels"), location.parameter("mask")
    if labels is not None:
        table = with_labels(table, read_table(location.sibling(labels)))
    return table if mask is None else with_mask(table, read_table(location.sibling(mask)))


def table_parts(name: str, rows: int) -> TableParts:
    """The parts of a table of any format; encoding, header and columns are decided before the first one is asked for.

    Args:
        name: where it is; `finetune.tables.location` has the forms.
        rows: of each part but the last.

    Raises:
        ValueError: as for `read_table`; for what is wrong with a row, when its part comes.
    """
    location = TableLocation.of(name)
    if location.suffix == ".parquet" and not location.member and _is_stored_as_it_is(location):
        return _parquet_parts(location, Path(location.place), rows)
    is_joined = not location.parameters.keys() <= {"separator", "encoding", "header_lines"}
    is_text = location.suffix in (*FASTA, *DELIMITED, "") and not location.place.startswith(DATASETS)
    if is_joined or location.member or not is_text:
        table = read_table(name)
        return TableParts(name, table.columns, table.said, lambda: table.cut(rows))
    location.require_file()
    return _text_parts(location, lambda: ByteStream(location.place).chunks(), rows)


def _whole(parts: TableParts) -> Table:
    (table,) = parts
    return replace(table, said=(*parts.said, *table.said))


def _parquet_parts(location: TableLocation, content: Path | bytes, rows: int) -> TableParts:
    location.require_only("a Parquet file")
    return TableParts(location.name, *parquet_parts(location.name, content, rows))


def _text_parts(location: TableLocation, chunks: Callable[[], Iterator[bytes]], rows: int) -> TableParts:
    """The parts of FASTA or of delimited text.

    Args:
        location: of the file.
        chunks: its bytes from the beginning, as often as they are asked for.
        rows: of each part but the last.
    """
    text = TextFile.of(location.name, chunks, location.parameter("encoding"))
    begin = "".join(islice(text.lines(), _FIRST_LINES))[:_FIRST_CHARACTERS]
    pattern = _RECORD if location.suffix in DELIMITED else re.compile(r"\s*>")
    if location.suffix in FASTA or pattern.match(begin):
        location.require_only("FASTA", "labels", "mask", "encoding")
        return _fasta_parts(text, rows)
    location.require_only("a table of text", "labels", "separator", "encoding", "header_lines")
    return _delimited_parts(location, text, rows)


def _fasta_parts(text: TextFile, rows: int) -> TableParts:
    def records() -> Iterator[FastaRecord]:
        return fasta_stream(text.name, text.lines(None))

    layout = HeaderLayout(records())

    def read() -> Iterator[Table]:
        found, first = records(), 1
        while some := list(islice(found, rows)):
            yield record_table(text.name, some, layout, first)
            first += len(some)

    columns = record_table(text.name, [next(records())], layout, 1).columns
    return TableParts(text.name, columns, (*text.said, *layout.said), read)


def _delimited_parts(location: TableLocation, text: TextFile, rows: int) -> TableParts:
    def begun() -> tuple[SkippedRows, list[TextRow], Iterator[TextRow], list[str]]:
        """Lines from the header on: those that decide, and those after them."""
        found, said = iterate_rows(text.lines(), text.name, location.parameter("separator"))
        kept = SkippedRows()
        return kept, kept.begun(list(islice(found, max(rows, _FIRST_LINES)))), found, said

    kept, first, _, said = begun()
    header_lines = location.parameter("header_lines", ("1", "2", "3"))
    head = parse_table(text.name, first, [*text.said, *said], header_lines, kept.said)
    if rows == _WHOLE:
        return TableParts(text.name, head.columns, (*head.said, *kept.said), lambda: iter([replace(head, said=())]))
    num_above = len(first) - head.num_rows

    def read() -> Iterator[Table]:
        kept, first, found, _ = begun()
        lines = chain(first[num_above:], kept(found))
        some = list(islice(lines, rows))
        while some:
            following = list(islice(lines, rows))
            yield table_of(text.name, head.columns, some, () if following else kept.said)
            some = following

    return TableParts(text.name, head.columns, head.said, read)


def _is_stored_as_it_is(location: TableLocation) -> bool:
    """Whether a Parquet file can be read where it is: it is on a disk, and not compressed once more."""
    path = Path(location.place)
    if "://" in location.place or not path.is_file():
        return False
    with path.open("rb") as file:
        return file.read(4) == PARQUET
