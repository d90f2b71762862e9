"""Tables to blocks, through datasets.load_dataset: Parquet, CSV, TSV, JSON, and any data set that it can stream.

In: ``x.parquet``, ``https://host/x.csv?sequence=seq&id=acc``, or ``datasets://NAME?split=train&sequence=seq`` with the
name of a data set on the Hub, of a local folder, or of one of its loaders. Out: blocks, as FASTA gives them; a row is a
record, its id the header. Kept: nothing. Rows are streamed: some thousand at a time, of a Parquet row group the columns
that are read; but a .json file that is one list is read whole, where .jsonl is not.
"""

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlencode

from data.block import START, Block, Position
from data.byte_stream import ByteStream
from data.entries import Entry, entry_blocks, shown
from data.settings import IngestSettings, LetterPolicy

DATASETS = "datasets://"

LOADERS = {".parquet": "parquet", ".csv": "csv", ".tsv": "csv", ".json": "json", ".jsonl": "json"}
"""Loader of `datasets` by a file's suffix."""

SEQUENCE_COLUMNS = ("sequence", "seq", "protein", "protein_sequence", "aa_seq", "primary")
"""Columns that are taken for the sequence where none is named, in any case."""

ID_COLUMNS = ("id", "accession", "entry", "name", "header")
"""Columns that are taken for the id where none is named, in any case; the first that is there."""

_COLUMNS = ("sequence", "id")
_OF_FILE = _COLUMNS
_OF_DATASET = (*_COLUMNS, "config", "split", "data_files", "data_dir", "revision")
_ROWS = 1000


def split_query(location: str, allowed: tuple[str, ...] = _OF_FILE) -> tuple[str, dict[str, str]]:
    """A location without the parameters behind its last ``?`` that are ours, and those.

    A server's own parameters stay where they are; of a local path, every parameter must be one of ours.

    Raises:
        ValueError: a parameter that is not known, given twice or without a value.
    """
    place, mark, query = location.rpartition("?")
    if not mark:
        return location, {}
    pairs = parse_qsl(query, keep_blank_values=True)
    ours = [(key, value) for key, value in pairs if key in allowed]
    theirs = [(key, value) for key, value in pairs if key not in allowed]
    remote = "://" in location and not location.startswith(DATASETS)
    if (theirs and not remote) or not pairs or len(dict(ours)) < len(ours) or not all(value for _, value in ours):
        raise ValueError(
            f"{location}: its parameters are {shown(query)}; allowed are {', '.join(allowed)}, each at most once, "
            f"written '{place}?{'&'.join(f'{key}=...' for key in allowed[:2])}'"
        )
    return (f"{place}?{urlencode(theirs)}" if theirs else place), dict(ours)


@dataclass(frozen=True)
class TableSource:
    """One table: a file by its suffix, or a data set by its name."""

    location: str
    """As in the recipe, parameters included."""
    suffix: str
    """Which of `LOADERS` reads it; empty for ``datasets://``."""
    unknown_letters: LetterPolicy
    limits: IngestSettings

    @property
    def name(self) -> str:
        """The location."""
        return self.location

    @property
    def num_bytes(self) -> int | None:
        """None: `datasets` does not say how far in a file it is."""
        return None

    @cached_property
    def _query(self) -> tuple[str, dict[str, str]]:
        if self.suffix:
            return split_query(self.location)
        place, parameters = split_query(self.location, _OF_DATASET)
        place = os.path.expanduser(place.removeprefix(DATASETS))
        if not place:
            raise ValueError(f"{self.location}: names no data set; write '{DATASETS}NAME?sequence=COLUMN'")
        if place.startswith((".", "/")) and not Path(place).exists():
            raise ValueError(f"{self.location}: no such folder {place}; check data.sources")
        return place, parameters

    def stamp(self) -> list[str | int]:
        """Place, size and time of change of the file, or of all files of the data set; and the parameters."""
        place, parameters = self._query
        stamp: list[str | int] = ["table", *(f"{key}={value}" for key, value in sorted(parameters.items()))]
        if self.suffix:
            return [*stamp, *ByteStream(place, self.limits).stamp()]
        stamp.append(os.path.realpath(place) if Path(place).exists() else place)
        try:
            files = self._builder({}).config.data_files or {}
        except Exception as error:
            raise self._refusal(error) from error
        for split, listed in sorted(files.items(), key=str):
            stamp += [str(split), *map(str, listed), *map(str, listed.origin_metadata)]
        return stamp

    def blocks(self, start: Position = START) -> Iterator[Block]:
        """Its rows from `start` on; those before it are read again and left out.

        Raises:
            ValueError: not there or not reachable; no such configuration, split or column; no column that must be the
                sequence; damaged; no row in it.
        """
        yield from entry_blocks(self._entries(start.records), self.unknown_letters, self.limits, start, lambda: 0)

    def _entries(self, skip: int) -> Iterator[Entry]:
        number = skip
        _ = self._query  # has errors of its own
        try:
            rows, sequence, name = self._rows()
            wanted = [sequence] if name is None else list(dict.fromkeys((sequence, name)))
            for batch in rows.select_columns(wanted).skip(skip).iter(batch_size=_ROWS):
                letters = batch[sequence]
                names = [...] * len(letters) if name is None else batch[name]
                for residues, label in zip(letters, names, strict=True):
                    number += 1
                    yield self._entry(number, residues, label, sequence, name)
        except _Refused:
            raise
        except Exception as error:  # whatever a loader, a file system or a server trips over
            raise self._refusal(error, number) from error
        if not number:
            raise ValueError(f"{self.location}: no row in it (empty table); remove it from data.sources or fill it")

    def _entry(self, number: int, residues: object, label: object, sequence: str, name: str | None) -> Entry:
        if residues is not None and not isinstance(residues, str):
            raise _Refused(
                f"{self.location}: column {sequence!r} holds {type(residues).__name__} in row {number}, not text; name "
                "the column of the sequence with '?sequence=COLUMN'"
            )
        header = f"row-{number}" if label is ... else "" if label is None else str(label)
        reason = f"has no value in the id column {name!r}; fill it" if not header.strip() else ""
        # A letter outside ASCII would become several bytes; '?' is one, and no letter either.
        letters = (residues or "").encode("ascii", "replace")
        return Entry(header.encode("utf-8", "replace"), letters, reason)

    def _builder(self, options: Mapping[str, Any]) -> Any:
        import datasets

        place, parameters = self._query
        files = {key: parameters[key] for key in ("data_files", "data_dir", "revision") if key in parameters}
        if self.suffix:
            files["data_files"], place = place, LOADERS[self.suffix]
        if self.suffix == ".tsv":
            options = {"sep": "\t", **options}
        return datasets.load_dataset_builder(place, parameters.get("config"), **files, **options)

    def _rows(self) -> tuple[Any, str, str | None]:
        """The rows as an IterableDataset, the name of the sequence column, and of the id column."""
        import datasets

        builder = self._builder({})
        kind = type(builder.config).__name__
        options: dict[str, Any] = {}
        if kind == "CsvConfig":
            # pandas takes 'NA' (asparagine, alanine) for a missing value and '007' for a number. In a TSV, which has
            # no need of quotes, it would read on from one quotation mark to the next, over any number of rows.
            options = {"na_filter": False}
            if builder.config.sep == "\t":
                options["quoting"] = 3
            columns = self._columns(self._stream(self._builder({**options, "nrows": 1})))
            options["features"] = datasets.Features({column: datasets.Value("string") for column in columns})
        else:
            columns = self._columns(self._stream(builder))
        sequence, name = self._sequence_column(columns), self._id_column(columns)
        if kind == "ParquetConfig":  # which would otherwise read every column, and stumble over an empty row group
            wanted = {sequence, name} - {None}
            options = {"columns": [column for column in columns if column in wanted], "batch_size": _ROWS}
        return self._stream(self._builder(options) if options else builder), sequence, name

    def _stream(self, builder: Any) -> Any:
        # The same as load_dataset(..., streaming=True), which does not show what files there are.
        return builder.as_streaming_dataset(split=self._query[1].get("split", "train"))

    def _columns(self, rows: Any) -> list[str]:
        columns: list[str] | None = rows.column_names
        columns = list(next(iter(rows), {})) if columns is None else columns
        if not columns:
            raise _Refused(f"{self.location}: no row in it (empty table); remove it from data.sources or fill it")
        return columns

    def _sequence_column(self, columns: list[str]) -> str:
        named = self._query[1].get("sequence")
        if named is not None:
            return self._named(named, columns)
        found = [column for column in columns if column.lower() in SEQUENCE_COLUMNS]
        if len(found) != 1:
            raise _Refused(
                f"{self.location}: which column is the sequence? {len(found)} of its columns bear one of the usual "
                f"names ({', '.join(SEQUENCE_COLUMNS)}); it has {', '.join(columns)}. Name one with '?sequence=COLUMN'"
            )
        return found[0]

    def _id_column(self, columns: list[str]) -> str | None:
        named = self._query[1].get("id")
        if named is not None:
            return self._named(named, columns)
        by_name = {column.lower(): column for column in reversed(columns)}
        return next((by_name[name] for name in ID_COLUMNS if name in by_name), None)

    def _named(self, column: str, columns: list[str]) -> str:
        if column not in columns:
            raise _Refused(f"{self.location}: no column {column!r}; it has {', '.join(columns)}")
        return column

    def _refusal(self, error: Exception, number: int = 0) -> ValueError:
        """Our words for what `datasets` said."""
        said = " ".join(str(error).split())[:300] or type(error).__name__
        where = f", after row {number}" if number else ""
        if said.startswith("Bad split"):
            asked = self._query[1].get("split", "train")
            there = said.partition("Available splits:")[2].strip(" []").replace("'", "")
            return ValueError(f"{self.location}: no split {asked!r}; there is {there}. Name one with '?split=SPLIT'")
        if "BuilderConfig" in said and "not found" in said:
            there = said.partition("Available:")[2].strip(" []").replace("'", "")
            return ValueError(f"{self.location}: no such configuration; there is {there}")
        if not self.suffix and isinstance(error, ConnectionError):
            return ValueError(
                f"{self.location}: {self._query[0]!r} is no local folder, and the Hub cannot be reached or "
                f"HF_HUB_OFFLINE is set ({said}); go online, or download it and name its folder"
            )
        if isinstance(error, FileNotFoundError):
            kind = "file" if self.suffix else f"data set, or none that may be read ({said})"
            return ValueError(f"{self.location}: no such {kind}; check data.sources")
        if isinstance(error, TypeError) and "client" in said and "://" in self.location:
            return ValueError(
                f"{self.location}: `datasets` reads compressed tables from disk and the web alone; store it unpacked, "
                "or as Parquet"
            )
        kind = "cut short" if isinstance(error, EOFError) else "damaged, of another format or not reachable"
        return ValueError(f"{self.location}: cannot be read{where}: {said}; it is {kind}")


class _Refused(ValueError):
    """An error that is in our words already."""
