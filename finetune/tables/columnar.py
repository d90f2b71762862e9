"""Columns of values to a table of text: Parquet, JSON, data sets of `datasets`, and sheets of Excel.

In: values of any type. Out: text as a user would write it: numbers with as few digits as tell them apart, dates as ISO
8601, lists as JSON. Kept: nothing.
"""

import datetime
import io
import json
import math
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

from data.sources.tables import TableSource
from finetune.tables.layout import parse_table
from finetune.tables.location import TableLocation
from finetune.tables.table import Table
from finetune.tables.text import TextRow, from_header

_EXCEL_ERRORS = ("#N/A", "#DIV/0!", "#REF!", "#VALUE!", "#NAME?", "#NUM!", "#NULL!")


def parquet_parts(
    name: str, content: Path | bytes, rows: int
) -> tuple[list[str], tuple[()], Callable[[], Iterator[Table]]]:
    """Names of the columns of a Parquet file, no sentences, and what reads it `rows` rows at a time.

    Raises:
        ValueError: it is damaged or has no row.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    @contextmanager
    def reading() -> Iterator[Any]:
        try:
            with pq.ParquetFile(content if isinstance(content, Path) else pa.BufferReader(content)) as file:
                yield file
        except (pa.ArrowException, OSError) as error:
            said = " ".join(str(error).split())[:200]
            raise ValueError(f"{name}: cannot be read as Parquet: {said}; download it again") from error

    def read() -> Iterator[Table]:
        first = 1
        with reading() as file:
            for batch in file.iter_batches(min(rows, num_rows)):
                columns = [column.to_pylist() for column in batch.columns]
                yield replace(_of_values(name, batch.schema.names, columns), first_row=first)
                first += batch.num_rows

    with reading() as file:
        names, num_rows = list(file.schema_arrow.names), file.metadata.num_rows
    if not num_rows:
        raise ValueError(f"{name}: has no row")
    return names, (), read


def dataset_table(location: TableLocation, source: TableSource) -> Table:
    """All rows and columns of JSON, or of what `datasets` loads by name, as pretraining reads it.

    Raises:
        ValueError: it cannot be loaded, or has no row.
    """
    columns: dict[str, list[Any]] = {}
    for batch in source.batches():
        for name, values in batch.items():
            columns.setdefault(name, []).extend(values)
    return _of_values(location.name, list(columns), list(columns.values()))


def sheet_table(location: TableLocation) -> Table:
    """A sheet of an Excel file, the first that has a row unless ``?sheet=NAME`` says which.

    Raises:
        ValueError: it is no Excel file, or has no such sheet.
    """
    import openpyxl

    warnings.filterwarnings("ignore", module="openpyxl")  # about extensions of Excel, which concern no cell
    try:
        book = openpyxl.load_workbook(io.BytesIO(location.read(packed=True)), read_only=True, data_only=True)
    except ValueError:
        raise
    except Exception as error:  # zipfile's and XML's errors, and openpyxl's own
        raise ValueError(f"{location.name}: cannot be read as .xlsx: {error}; save it again, or as CSV") from error
    named = location.parameter("sheet", tuple(book.sheetnames))
    said: list[str] = []
    num_errors = 0
    for sheet in [book[named]] if named else book.worksheets:
        lines = []
        for number, row in enumerate(sheet.iter_rows(values_only=True), 1):
            num_errors += sum(value in _EXCEL_ERRORS for value in row if isinstance(value, str))
            fields = ["" if value in _EXCEL_ERRORS else _text(value) or "" for value in row]
            if any(field.strip() for field in fields):
                lines.append(TextRow(number, fields))
        if lines:
            break
    if len(book.sheetnames) > 1:
        others = ", ".join(repr(name) for name in book.sheetnames if name != sheet.title)
        said.append(f"the sheet {sheet.title!r} is read; there are also {others} ('?sheet=NAME')")
    if num_errors:
        said.append(f"cells with an error of Excel, such as #N/A, are taken for empty: {num_errors}")
    filled = [[at for at, field in enumerate(line.fields, 1) if field.strip()] for line in lines]
    width = max(chain.from_iterable(filled), default=0)
    lines = [TextRow(line.number, line.fields[:width] + [""] * (width - len(line.fields))) for line in lines]
    lines, num_before = from_header(lines)
    if num_before:
        said.append(f"rows above the header are left out: {num_before}")
    return parse_table(location.name, lines, said, location.parameter("header_lines", ("1", "2", "3")))


def _of_values(name: str, columns: list[str], values: list[list[Any]]) -> Table:
    import pyarrow as pa

    if not values or not values[0]:
        raise ValueError(f"{name}: has no row")
    arrays = [pa.array([_text(value) for value in column], pa.string()) for column in values]
    return Table(name, pa.table(dict(zip(columns, arrays, strict=True))), 1)


def _text(value: Any) -> str | None:
    """A value as text; None for one that is missing, NaN included."""
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return None
    if isinstance(value, str):
        return value
    if isinstance(value, float):
        return str(int(value)) if value.is_integer() and abs(value) < 1e15 else repr(value)
    if isinstance(value, datetime.datetime):
        return value.date().isoformat() if value.time() == datetime.time() else value.isoformat(" ")
    if isinstance(value, (datetime.date, datetime.time)):
        return value.isoformat()
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    if isinstance(value, (bool, list, tuple, dict)):
        return json.dumps(value, default=str)
    return str(value)
