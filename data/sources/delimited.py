"""CSV and TSV: each row as fields under the header's columns, or an error with both counts.

In: chunks of text. Out: the header's columns; rows. Kept: the current row, and at first a hundred of them.

The csv module splits the text. pandas, and so `datasets`, would fill a row that is too short with empty values, and
would take the first column for row names if the first row has one field more than the header, which moves every value
to another column.
"""

import csv
import io
import re
from collections import Counter
from collections.abc import Iterator
from itertools import chain, islice
from typing import Any, Literal

from data.sources.fasta_text import MAX_LINE_BYTES
from data.transport.byte_stream import ChunkFile

_FIRST_ROWS = 100
_LETTERS = re.compile(r"\s*[A-Za-z]+\*?\s*")


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

        Empty fields after the header's last column, from separators at the end of a row, are dropped. If each of the
        first rows has one field more than the header, as R's write.table writes them, the first field may be the row's
        name; it is then left out.

        Args:
            sequence: index of the column of the sequence, which decides whether the field too many is a row name.

        Raises:
            MalformedTableError: a row with more fields than columns; a quotation mark without its partner; not UTF-8.
        """
        first = list(islice(self._rows, _FIRST_ROWS))
        names = int(self._have_names(first, sequence))
        width = len(self.columns) + names
        least = width
        while least > 1 + names and not self.columns[least - names - 1]:
            least -= 1
        for line, fields in chain(first, self._rows):
            if len(fields) > width and any(map(str.strip, fields[width:])):
                shown = ", ".join(map(repr, self.columns[:8])) + (", ..." if len(self.columns) > 8 else "")
                raise MalformedTableError(
                    f"Expected {width} fields in line {line}, saw {len(fields)}: the header, in line "
                    f"{self._header_line}, has {len(self.columns)} ({shown}). Put quotes around a field that holds the "
                    "separator; or, if there is a column without a name, give it one"
                )
            wrong = ""
            if sequence + names < len(fields) < least:
                wrong = (
                    f"has {len(fields)} fields, in line {line}, where {width} are expected by the header; write the "
                    "missing ones, empty if need be, so that no value stands in another's column"
                )
            yield line, fields[names:], wrong

    def _have_names(self, first: list[tuple[int, list[str]]], sequence: int) -> bool:
        """Whether the rows begin with a name that has no column.

        They could also end in one field too many, such as the second half of a text that holds the separator. So in
        each row, the sequence must have more letters if the first field is taken for a name than if it is not.
        """
        rows = [fields for _, fields in first]
        if not any(fields[-1].strip() for fields in rows) or any(
            len(fields) != len(self.columns) + 1 for fields in rows
        ):
            return False
        letters = [
            tuple(len(fields[at]) if _LETTERS.fullmatch(fields[at]) else 0 for at in (sequence, sequence + 1))
            for fields in rows
        ]
        return any(map(any, letters)) and all(without < named or named == without == 0 for without, named in letters)


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
