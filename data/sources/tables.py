"""Tables to blocks: CSV and TSV; Parquet, JSON and any data set that datasets.load_dataset can stream.

In: ``x.parquet``, ``https://host/x.csv?sequence=seq&id=acc``, or ``datasets://NAME?split=train&sequence=seq`` with the
name of a data set on the Hub, of a local folder, or of a loader of `datasets`. Out: blocks, as FASTA gives them; a row
is a record, its id the header. Kept: nothing. Rows are streamed, a thousand at a time, and of Parquet only the columns
that are needed are read. A .json file that is one list is read whole; .jsonl is streamed. If a data set consists of CSV
files, `datasets` finds them, and `data.sources.delimited` reads them like any other.
"""

import atexit
import os
import re
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, fields
from functools import cached_property, partial
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import parse_qsl

from data.settings import LetterPolicy, SourceContent
from data.sources.block import START, RecordBlock, SourcePosition
from data.sources.delimited import DelimitedText, MalformedTableError
from data.sources.fasta_text import within_line_cap
from data.sources.protein import RejectionReason, shown
from data.sources.record_format import Entry, entry_blocks
from data.transport.byte_stream import ByteStream, SingleFileSource
from data.transport.remote_file import RemoteFile
from data.transport.retries import ATTEMPTS, WEB, StreamError
from zymogen.console.safe_text import unredacted
from zymogen.settings.section import expanded

DATASETS = "datasets://"

LOADERS = {".parquet": "parquet", ".json": "json", ".jsonl": "json"}
"""Loader of `datasets` by a file's suffix."""

SEPARATORS = {".csv": ",", ".tsv": "\t"}
"""Separator of delimited text by its suffix."""

SEQUENCE_COLUMNS = ("sequence", "seq", "protein", "protein_sequence", "aa_seq", "primary")
"""Columns that are taken for the sequence if none is named; upper or lower case."""

ID_COLUMNS = ("id", "accession", "entry", "name", "header")
"""Columns of which the first that exists is taken for the id if none is named; upper or lower case."""

_COLUMNS = ("sequence", "id")

_OF_DATASET = (*_COLUMNS, "config", "split", "data_files", "data_dir", "revision")
_ROWS = 1000


def split_query(location: str, allowed: tuple[str, ...] = _COLUMNS) -> tuple[str, dict[str, str]]:
    """A location without those parameters after its last ``?`` that are ours; and these parameters.

    Parameters of a server stay in the location; every parameter of a local path must be one of ours.

    Raises:
        ValueError: a parameter that is not known, given twice or without a value.
    """
    place, mark, query = location.rpartition("?")
    if not mark or os.path.lexists(location):  # a file's name may have a question mark
        return location, {}
    parts = query.split("&")
    ours = parse_qsl("&".join(part for part in parts if _key(part) in allowed), keep_blank_values=True)
    theirs = "&".join(part for part in parts if _key(part) not in allowed)  # byte for byte, as it may be signed
    remote = "://" in location and not location.startswith(DATASETS)
    if (theirs and not remote) or not query or len(dict(ours)) < len(ours) or not all(value for _, value in ours):
        raise ValueError(
            f"{location}: its parameters are {shown(query)}; allowed are {', '.join(allowed)}, each at most once, "
            f"written '{place}?{'&'.join(f'{key}=...' for key in allowed[:2])}'"
        )
    return (f"{place}?{theirs}" if theirs else place), dict(ours)


def _key(part: str) -> str:
    return part.partition("=")[0]


@dataclass(frozen=True)
class TableSource(SingleFileSource):
    """One table: a file by its suffix, or a data set by its name."""

    suffixes: ClassVar = (*LOADERS, *SEPARATORS)
    location: str
    """The location as the recipe has it, parameters included."""
    suffix: str
    """One of `suffixes`; empty for ``datasets://``."""
    unknown_letters: LetterPolicy
    content: SourceContent = "protein"

    @property
    def num_bytes(self) -> int | None:
        """Size of CSV and TSV as stored; else None, as `datasets` does not report how much of a file it has read."""
        return ByteStream(self._query[0]).num_bytes if self.suffix in SEPARATORS else None

    @cached_property
    def _query(self) -> tuple[str, dict[str, str]]:
        if self.suffix:
            return split_query(unredacted(self.location))
        place, parameters = split_query(unredacted(self.location), _OF_DATASET)
        place = expanded(place.removeprefix(DATASETS))
        if not place:
            raise ValueError(f"{self.location}: names no data set; write '{DATASETS}NAME?sequence=COLUMN'")
        if place.startswith((".", "/")) and not Path(place).exists():
            raise ValueError(f"{self.location}: no such folder {place}; check data.sources")
        return place, parameters

    @cached_property
    def _plain(self) -> str:
        """The place under a name that `datasets` takes for no pattern and no chain; for some names those are links."""
        place, _ = self._query
        if not (re.search(r"[][*?]|::", place) and os.path.exists(place)):
            return place
        folder = tempfile.mkdtemp(prefix="zymogen-")
        atexit.register(shutil.rmtree, folder, ignore_errors=True)
        link = os.path.join(folder, f"table{self.suffix}")
        link_files = partial(shutil.copytree, copy_function=os.symlink) if os.path.isdir(place) else os.symlink
        link_files(os.path.realpath(place), link)
        return link

    def stamp(self) -> list[str | int]:
        """Place, size and time of change of the file, or of all files of the data set; and the parameters."""
        place, parameters = self._query
        stamp: list[str | int] = ["table", *(f"{key}={value}" for key, value in sorted(parameters.items()))]
        if self.suffix:
            return [*stamp, *ByteStream(place).stamp()]
        real = os.path.realpath(place) if Path(place).exists() else place
        stamp.append(real)
        try:
            files = self._builder({}).config.data_files or {}
        except Exception as error:
            raise self._refusal(error) from error
        for split, listed in sorted(files.items(), key=str):
            stamp += [str(split), *(str(file).replace(self._plain, real) for file in listed)]
            stamp += map(str, listed.origin_metadata)
        return stamp

    def blocks(self, start: SourcePosition = START) -> Iterator[RecordBlock]:
        """Its rows from `start` on; those before it are read again and left out.

        Raises:
            ValueError: it does not exist, cannot be reached, is damaged or has no row; there is no such configuration,
                split or column; or it is not clear which column is the sequence.
        """
        streams: list[ByteStream] = []
        yield from entry_blocks(
            self._entries(start.records, streams),
            self.unknown_letters,
            self.content,
            start,
            lambda: sum(stream.bytes_read for stream in streams),
        )

    def csv_files(self) -> list[str]:
        """The files of a data set of `datasets` that consists of CSV files, which are better read as text; else none.

        Raises:
            ValueError: it cannot be reached; there is no such split; its files are not plain CSV.
        """
        try:
            builder = self._first_builder()
            return self._csv_files(builder)[0] if type(builder.config).__name__ == "CsvConfig" else []
        except (_TableError, StreamError):
            raise
        except Exception as error:  # loaders, file systems and servers raise errors of many types
            raise self._refusal(error) from error

    def batches(self) -> Iterator[Mapping[str, list[Any]]]:
        """All rows with all columns, up to a thousand at a time, as `datasets` gives them: column name -> values.

        It is for readers of tables that hold more than proteins; CSV and TSV have a reader of their own.

        Raises:
            ValueError: it does not exist, cannot be reached, is damaged or has no row; there is no such configuration
                or split.
        """
        number = 0
        place, _ = self._query
        assert self.suffix not in SEPARATORS, place
        try:
            for batch in self._stream(self._first_builder()).iter(batch_size=_ROWS):
                number += len(next(iter(batch.values()), []))
                yield batch
        except StreamError:
            raise
        except Exception as error:  # loaders, file systems and servers raise errors of many types
            raise self._refusal(error, number) from error
        if not number:
            raise self._no_row()

    def _entries(self, skip: int, streams: list[ByteStream]) -> Iterator[Entry]:
        """Its rows after the first `skip`; the streams that CSV and TSV are read from are added to `streams`."""
        number = skip
        place, _ = self._query  # outside `try`, as its errors need no other words
        if self.suffix in SEPARATORS:
            yield from self._delimited([place], SEPARATORS[self.suffix], skip, streams)
            return
        try:
            builder = self._first_builder()
            if type(builder.config).__name__ == "CsvConfig":
                yield from self._delimited(*self._csv_files(builder), skip, streams)
                return
            rows, sequence, name = self._rows(builder)
            wanted = [sequence] if name is None else list(dict.fromkeys((sequence, name)))
            for batch in rows.select_columns(wanted).skip(skip).iter(batch_size=_ROWS):
                letters = batch[sequence]
                names = [...] * len(letters) if name is None else batch[name]
                for residues, label in zip(letters, names, strict=True):
                    number += 1
                    yield self._entry(number, residues, label, sequence, name)
        except (_TableError, StreamError):
            raise
        except Exception as error:  # loaders, file systems and servers raise errors of many types
            raise self._refusal(error, number) from error
        if not number:
            raise self._no_row()

    def _delimited(self, places: list[str], separator: str, skip: int, streams: list[ByteStream]) -> Iterator[Entry]:
        number = 0
        for place in places:
            streams.append(stream := ByteStream(place))
            text: DelimitedText | None = None
            try:
                text = DelimitedText(within_line_cap(stream.chunks(), place), separator)
                if not text.columns:
                    raise self._no_row()
                sequence, name = self._sequence_column(text.columns), self._id_column(text.columns)
                letters_at, name_at = map(text.columns.index, (sequence, name or sequence))
                for line, row, wrong in text.rows(letters_at):
                    number += 1
                    if number > skip:
                        letters, label = (row[at] if at < len(row) else "" for at in (letters_at, name_at))
                        # As `finetune` numbers rows; lines of several files would not tell them apart.
                        shown = line if len(places) == 1 else number
                        entry = self._entry(shown, letters, ... if name is None else label, sequence, name)
                        yield entry._replace(refusal=RejectionReason("misaligned row", wrong)) if wrong else entry
            except StreamError as error:
                lines = f"after line {text.line}" if text else "in its header"
                raise error.at(f"so that it cannot be read {lines}") from error.__cause__
            except MalformedTableError as error:
                where = self.location if self.suffix else f"{self.location}: {place}"
                raise _TableError(f"{where}: cannot be read: {error}") from error
        if not number:
            raise self._no_row()

    def _csv_files(self, builder: Any) -> tuple[list[str], str]:
        """The CSV files of a data set, and their separator."""
        import datasets

        config, split = builder.config, self._query[1].get("split", "train")
        ours = {"sep", "delimiter", "features", *(field.name for field in fields(datasets.BuilderConfig))}
        others = [f.name for f in fields(config) if f.name not in ours and getattr(config, f.name) != f.default]
        if others or len(config.sep) != 1:
            raise _TableError(
                f"{self.location}: its CSV files are to be read with {', '.join(others) or f'sep={config.sep!r}'}, as "
                "its authors say, which is not done here; convert it to Parquet, or write its files with a header and "
                "one separator"
            )
        files = {str(name): listed for name, listed in (config.data_files or {}).items()}
        if split not in files:
            raise self._no_split(", ".join(files))
        return list(map(str, files[split])), config.sep

    def _no_row(self) -> "_TableError":
        return _TableError(f"{self.location}: no row in it (empty table); remove it from data.sources or fill it")

    def _no_split(self, there: str) -> "_TableError":
        asked = self._query[1].get("split", "train")
        return _TableError(f"{self.location}: no split {asked!r}; there is {there}. Name one with '?split=SPLIT'")

    def _entry(self, number: int, residues: object, label: object, sequence: str, name: str | None) -> Entry:
        if residues is not None and not isinstance(residues, str):
            raise _TableError(
                f"{self.location}: column {sequence!r} holds {type(residues).__name__} in row {number}, not text; name "
                "the column of the sequence with '?sequence=COLUMN'"
            )
        header = f"row-{number}" if label is ... else "" if label is None else str(label)
        nameless = RejectionReason("bad header", f"has no value in the id column {name!r}; fill it")
        # A letter outside ASCII would become several bytes; '?' is one byte, and is refused as well.
        letters = (residues or "").encode("ascii", "replace")
        return Entry(header.encode("utf-8", "replace"), letters, None if header.strip() else nameless)

    def _first_builder(self) -> Any:
        """The builder; if a web server fails, it is asked again as often as for other sources.

        Once a table is open, `datasets` repeats failed requests itself. But it tries to open one only once, and reports
        any failure as a missing file.
        """
        place, _ = self._query
        for _ in range(ATTEMPTS):
            try:
                return self._builder({})
            except FileNotFoundError:
                if not (self.suffix and place.startswith(WEB)):
                    raise
            try:
                with closing(RemoteFile(place).chunks()) as chunks:
                    next(chunks, b"")
            except ValueError as error:
                raise _TableError(str(error)) from error
        return self._builder({})

    def _builder(self, options: Mapping[str, Any]) -> Any:
        import datasets

        datasets.logging.set_verbosity(datasets.logging.CRITICAL)  # otherwise it also prints what it raises
        place, parameters = self._plain, self._query[1]
        files = {key: parameters[key] for key in ("data_files", "data_dir", "revision") if key in parameters}
        if self.suffix:
            files["data_files"], place = place, LOADERS[self.suffix]
        return datasets.load_dataset_builder(place, parameters.get("config"), **files, **options)

    def _rows(self, builder: Any) -> tuple[Any, str, str | None]:
        """The rows as an IterableDataset, the name of the sequence column, and of the id column."""
        columns = self._columns(self._stream(builder))
        sequence, name = self._sequence_column(columns), self._id_column(columns)
        options: dict[str, Any] = {}
        # The loader of Parquet would otherwise read every column, and fail at an empty row group.
        if type(builder.config).__name__ == "ParquetConfig":
            wanted = {sequence, name} - {None}
            options = {"columns": [column for column in columns if column in wanted], "batch_size": _ROWS}
        return self._stream(self._builder(options) if options else builder), sequence, name

    def _stream(self, builder: Any) -> Any:
        # The same as load_dataset(..., streaming=True), which does not show which files there are.
        return builder.as_streaming_dataset(split=self._query[1].get("split", "train"))

    def _columns(self, rows: Any) -> list[str]:
        columns: list[str] | None = rows.column_names
        columns = list(next(iter(rows), {})) if columns is None else columns
        if not columns:
            raise self._no_row()
        return columns

    def _sequence_column(self, columns: list[str]) -> str:
        named = self._query[1].get("sequence")
        if named is not None:
            return self._named(named, columns)
        found = [column for column in columns if column.lower() in SEQUENCE_COLUMNS]
        if len(found) != 1:
            raise _TableError(
                f"{self.location}: which column is the sequence? {len(found)} of its columns bear one of the usual "
                f"names ({', '.join(SEQUENCE_COLUMNS)}); it has {', '.join(columns)}. Name one with "
                "'?sequence=COLUMN'; two chains are two sources"
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
            raise _TableError(f"{self.location}: no column {column!r}; it has {', '.join(columns)}")
        return column

    def _refusal(self, error: Exception, number: int = 0) -> ValueError:
        """Our error for an error that `datasets` raised."""
        said = " ".join(str(error).split())[:300] or type(error).__name__
        where = f", after row {number}" if number else ""
        if said.startswith("Bad split"):
            return self._no_split(said.partition("Available splits:")[2].strip(" []").replace("'", ""))
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
        return ValueError(
            f"{self.location}: cannot be read{where}: {said}; it is {kind}: check its suffix, copy or download it again"
        )


class _TableError(ValueError):
    """An error with a message of ours, which `_refusal` need not replace."""
