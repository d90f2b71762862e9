"""CSV and TSV: each row as fields under the header's columns, or an error with both counts.

In: chunks of text. Out: the header's columns; rows. Kept: the current row.

The csv module splits the text. pandas, and so `datasets`, would fill a row that is too short with empty values, and
would take the first column for row names if the first row has one field more than the header, which moves every value
to another column.
"""

import csv
import io
from collections import Counter
from collections.abc import Iterator
from typing import Any, Literal

from data.sources.fasta_text import MAX_LINE_BYTES
from data.transport.byte_stream import ChunkFile


class MalformedTableError(ValueError):
    """Text that is not a table. The message is written after the name of the file and a colon."""


class DelimitedText:
    """One table.

    Quotes hold separators and line ends in a CSV. A TSV has none: a quotation mark there is a letter like any other.

    Args:
        chunks: the text, UTF-8 with or without byte order mark.
        separator: one character; a tab means that the table is a TSV.

    Raises:
        MalformedTableError: the header cannot be read, or has two columns of one name.
    """

    def __init__(self, chunks: Iterator[bytes], separator: str) -> None:
        csv.field_size_limit(max(csv.field_size_limit(), MAX_LINE_BYTES))  # global to the process, at first 128 kB
        text = io.TextIOWrapper(io.BufferedReader(ChunkFile(chunks), 1 << 16), "utf-8-sig", newline="")
        quoting: Literal[0, 3] = csv.QUOTE_NONE if separator == "\t" else csv.QUOTE_MINIMAL
        reader = csv.reader(text, delimiter=separator, quoting=quoting, strict=True)
        self._reader = reader
        self._rows = _rows(reader)
        self._header_line, columns = next(self._rows, (0, []))
        self.columns = [name.strip(" ") for name in columns]
        """Names of the columns, "" for a column without a name; an empty list for an empty file."""
        times = Counter(name for name in self.columns if name)
        if twice := [name for name, count in times.items() if count > 1]:
            raise MalformedTableError(
                f"{times[twice[0]]} of its {len(self.columns)} columns are called {twice[0]!r}; give each a name of "
                "its own"
            )
        if any("\0" in name for name in self.columns):
            raise MalformedTableError("there are NUL bytes in its header: it is UTF-16 or no text; save it as UTF-8")

    @property
    def line(self) -> int:
        """How many lines were read."""
        return int(self._reader.line_num)

    def rows(self, sequence: int) -> Iterator[tuple[int, list[str], str]]:
        """The line in which each row ends, its fields in the order of the header, and what is wrong with their number.

        Empty fields after the header's last column, from separators at the end of a row, are dropped.

        Args:
            sequence: index of the column of the sequence, before which no row may end.

        Raises:
            MalformedTableError: a row with more fields than columns; a quotation mark without its partner; not UTF-8.
        """
        width = least = len(self.columns)
        while least > 1 and not self.columns[least - 1]:
            least -= 1
        for line, fields in self._rows:
            if len(fields) > width and any(map(str.strip, fields[width:])):
                shown = ", ".join(map(repr, self.columns[:8])) + (", ..." if len(self.columns) > 8 else "")
                raise MalformedTableError(
                    f"Expected {width} fields in line {line}, saw {len(fields)}: the header, in line "
                    f"{self._header_line}, has {len(self.columns)} ({shown}). Put quotes around a field that holds the "
                    "separator; or, if there is a column without a name, as R writes names of rows, give it one"
                )
            wrong = ""
            if sequence < len(fields) < least:
                wrong = (
                    f"has {len(fields)} fields, in line {line}, where {width} are expected by the header; write the "
                    "missing ones, empty if need be, so that no value stands in another's column"
                )
            yield line, fields, wrong


def _rows(reader: Any) -> Iterator[tuple[int, list[str]]]:
    """The rows that are not blank, each after the number of the line in which it ends."""
    try:
        for fields in reader:
            if fields and not (len(fields) == 1 and fields[0].isspace()):
                yield reader.line_num, fields
    except csv.Error as error:
        raise MalformedTableError(
            f"line {reader.line_num}: {error}: is a quotation mark left open? One inside a quoted field is written "
            "twice"
        ) from None
    except UnicodeDecodeError as error:
        raise MalformedTableError(
            f"it is not UTF-8 (byte 0x{error.object[error.start]:02x}); save it as UTF-8"
        ) from None
