"""Any table that people have, as text: `read_table` decides by suffix and content who reads it.

In: a location (`finetune.tables.location`). Out: a `Table`. Kept: nothing. The whole table is held in memory.
"""

import re
from dataclasses import replace

from data.sources.fasta import FastaSource
from data.sources.tables import DATASETS, LOADERS, TableSource
from finetune.tables.columnar import dataset_table, parquet_table, sheet_table
from finetune.tables.fasta import fasta_table, with_labels, with_mask
from finetune.tables.layout import parse_table
from finetune.tables.location import TableLocation
from finetune.tables.table import Table
from finetune.tables.text import decode, split_rows

FASTA = FastaSource.suffixes
DELIMITED = (".csv", ".tsv", ".txt", ".tab")
SHEETS = (".xlsx", ".xlsm")
_RECORD = re.compile(r"\s*>[^\r\n]*[\r\n]\s*[A-Za-z*-]+\s*(?:[\r\n]|\Z)")
_TABLES = (*DELIMITED, *FASTA, *SHEETS, *LOADERS)


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
    if suffix == ".parquet":
        location.require_only("a Parquet file")
        return parquet_table(location)
    if suffix in SHEETS:
        location.require_only("an Excel file", "sheet", "header_lines")
        return sheet_table(location)
    text, said = decode(location.read(), name, location.parameter("encoding"))
    if is_fasta(suffix, text):
        location.require_only("FASTA", "labels", "mask", "encoding")
        table = fasta_table(name, text)
        return _joined(replace(table, said=(*said, *table.said)), location)
    location.require_only("a table of text", "labels", "separator", "encoding", "header_lines")
    found, more = split_rows(text, name, location.parameter("separator"))
    table = parse_table(name, found, [*said, *more], location.parameter("header_lines", ("1", "2", "3")))
    return _joined(table, location)


def is_fasta(suffix: str, begin: str) -> bool:
    """Whether a text file is FASTA: by its suffix, or because it begins with a header above a line of letters."""
    return suffix in FASTA or (_RECORD if suffix in DELIMITED else re.compile(r"\s*>")).match(begin) is not None


def _joined(table: Table, location: TableLocation) -> Table:
    """A table with the labels and the mask that its location names."""
    labels, mask = location.parameter("labels"), location.parameter("mask")
    if labels is not None:
        table = with_labels(table, read_table(location.sibling(labels).name))
    if mask is not None:
        table = with_mask(table, read_table(location.sibling(mask).name))
    return table
