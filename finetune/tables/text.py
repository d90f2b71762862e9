"""Delimited text to lines of fields: encoding and separator from the content, comments and blank lines left out.

In: the bytes of a file. Out: lines of fields with their numbers, and sentences about what was decided. Kept: nothing.
"""

import codecs
import csv
import io
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain, islice, pairwise

from data.transport.byte_stream import ChunkFile
from finetune.tables.numbers import MISSING, is_number, name_and_unit

_SAMPLE = 200
"""Lines from which the separator is found."""
_MOST_TITLES = 10
"""Lines above a header that may hold titles."""
_SEPARATORS = {",": "commas", ";": "semicolons", "\t": "tabs", "|": "vertical bars"}
_WORDS = {**_SEPARATORS, " ": "spaces"}
_HINT = re.compile(r"sep=(?P<separator>[,;\t|])\r?\n")
_NAMES = {"comma": ",", "semicolon": ";", "tab": "\t", "pipe": "|", **{sign: sign for sign in _SEPARATORS}}
_MUTATION = r"(?:p\.)?\(?[A-Z]{1,3}-?\d+(?:[A-Z]{1,3}|=|\*)\)?"
_MUTATIONS = re.compile(rf"(?:p\.)?[\[(]?{_MUTATION}(?:[,;|]\s?{_MUTATION})+[\])]?", re.I)
_PADDED = 0.9
_MOST_FIELD_BYTES = 64 << 20
PARQUET = b"PAR1"
"""What a Parquet file begins with."""
BOMS = ((codecs.BOM_UTF8, "utf-8-sig"), (codecs.BOM_UTF16_LE, "utf-16"), (codecs.BOM_UTF16_BE, "utf-16"))


@dataclass(frozen=True, slots=True)
class TextRow:
    """One line of a table, or several where a quoted field holds line ends."""

    number: int
    """The line in which it ends, from 1."""
    fields: list[str]


@dataclass(frozen=True, slots=True)
class TextFile:
    """A file of text."""

    name: str
    """The location as the user gave it, for errors."""
    chunks: Callable[[], Iterator[bytes]]
    """Its bytes from the beginning, as often as they are asked for."""
    encoding: str
    said: list[str]
    """What was decided about the encoding."""

    @classmethod
    def of(cls, name: str, chunks: Callable[[], Iterator[bytes]], encoding: str | None = None) -> "TextFile":
        """A file in the encoding that the user names, or that is found; errors as of `_encoding_of`."""
        return cls(name, chunks, *_encoding_of(chunks, name, encoding))

    def lines(self, newline: str | None = "") -> Iterator[str]:
        """Its lines from the beginning."""
        return iter(io.TextIOWrapper(io.BufferedReader(ChunkFile(self.chunks())), self.encoding, newline=newline))


def _encoding_of(chunks: Callable[[], Iterator[bytes]], name: str, named: str | None) -> tuple[str, list[str]]:
    """The encoding of a file, and what was decided about it.

    A byte order mark decides; otherwise it is UTF-8, or else Windows-1252 or Latin-1, which is said.

    Args:
        chunks: the bytes of the file from the beginning, as often as they are asked for.
        name: the file, for an error.
        named: the encoding, if the user names it.

    Raises:
        ValueError: it is not text, or not in the encoding that was named, or as which it begins.
    """
    first = next(chunks(), b"")
    if first.startswith(PARQUET):
        raise ValueError(f"{name}: is a Parquet file; give it the suffix .parquet")
    sure = named or next((found for mark, found in BOMS if first.startswith(mark)), None)
    if sure is None:
        wrong = _misfit("utf-8", chunks(), name)
        if wrong is None:
            return "utf-8", []
        byte, line, _ = wrong
        found = next(each for each in ("cp1252", "latin-1") if not _misfit(each, chunks()))
        shown = f"it was read as {found}, where that is {bytes([byte]).decode(found)!r}"
        return found, [f"it is not UTF-8 (byte 0x{byte:02x} in line {line}); {shown}"]
    try:
        error: object = (_misfit(sure, chunks()) or (0, 0, None))[2]
    except LookupError as unknown:
        error = unknown
    if error is not None:
        what = f"with encoding={named}: {error}; leave it out, or correct it"
        what = what if named else f"as {sure}, as which it begins: {error}; save it as UTF-8"
        raise ValueError(f"{name}: cannot be read {what}") from None
    return sure, []


def _misfit(encoding: str, chunks: Iterator[bytes], name: str = "") -> tuple[int, int, UnicodeDecodeError] | None:
    """The first byte of a file that is in no text of an encoding, its line, and the error; None if there is none.

    Args:
        encoding: that it may have.
        chunks: the bytes of the file.
        name: the file, where the encoding is a guess, which is wrong of what is no text.

    Raises:
        LookupError: there is no such encoding.
        ValueError: it is no text.
    """
    decoder, line = codecs.getincrementaldecoder(encoding)(), 1
    for chunk in chain(chunks, [b""]):
        if name and b"\0" in chunk:
            raise ValueError(f"{name}: holds NUL bytes: it is no text, or UTF-16 without its mark; save it as UTF-8")
        try:
            decoder.decode(chunk, final=not chunk)
        except UnicodeDecodeError as error:
            return error.object[error.start], line + error.object[: error.start].count(b"\n"), error
        line += chunk.count(b"\n")
    return None


def iterate_rows(stream: Iterator[str], name: str, separator: str | None = None) -> tuple[Iterator[TextRow], list[str]]:
    """Every line of fields of a text, and what was decided from its first lines about its separator.

    Args:
        stream: lines with their ends as they are written.
        name: the file, for errors.
        separator: the separator, if the user names it: one character, or comma, semicolon, tab, pipe.

    Raises:
        ValueError: a separator that is none; a quotation mark without its partner, when its line comes.
    """
    said: list[str] = []
    sample = list(islice(stream, _SAMPLE))
    if separator is None and (hint := _HINT.match("".join(sample))):  # which Excel writes and reads
        separator, sample[0] = hint["separator"], "\n"
    if separator is None:
        separator = "\t" if _is_one_of_mutations(sample) else _sniffed(sample)
        if separator != "," and any(separator in line for line in sample):
            said.append(f"its fields are separated by {_WORDS[separator]}")
    else:
        if separator not in _NAMES:
            raise ValueError(f"{name}: separator is {separator!r}; allowed are comma, semicolon, tab, pipe")
        separator = _NAMES[separator]
    if separator != "," and _are_padded(sample):
        sample, stream = [_unpadded(line) for line in sample], map(_unpadded, stream)
    if separator == " ":
        sample, separator = [_with_tabs(line) for line in sample], "\t"
        stream = map(_with_tabs, stream)
    quoted = separator != "\t" or _has_quoted_fields(sample)

    def found() -> Iterator[TextRow]:
        try:
            yield from _fields(chain(sample, stream), separator, quoted=quoted)
        except csv.Error as error:
            raise ValueError(
                f"{name}: {error}: is a quotation mark left open? One inside a quoted field is written twice"
            ) from None

    return found(), said


class SkippedRows:
    """Which lines of a table are left out: empty rows, what stands above the header, comments."""

    def __init__(self) -> None:
        self.num_empty = self.num_before = self.num_comments = self.width = 0

    def begun(self, found: list[TextRow]) -> list[TextRow]:
        """The first lines from the header on, which decide what the others are."""
        kept = [line for line in found if self._is_filled(line)]
        kept, self.num_before = from_header(kept)
        self.width = len(kept[0].fields) if kept else 0
        rows = [line for line in kept if self._is_row(line)]
        if rows and rows[0].fields[0].startswith("#"):
            rows[0] = TextRow(rows[0].number, [rows[0].fields[0].lstrip("# "), *rows[0].fields[1:]])
        return rows

    def __call__(self, found: Iterable[TextRow]) -> Iterator[TextRow]:
        """Those of further lines that are rows."""
        return (line for line in found if self._is_filled(line) and self._is_row(line))

    def _is_filled(self, line: TextRow) -> bool:
        is_filled = any(map(str.strip, line.fields))
        self.num_empty += not is_filled
        return is_filled

    def _is_row(self, line: TextRow) -> bool:
        is_comment = line.fields[0].startswith("#") and len(line.fields) != self.width
        self.num_comments += is_comment
        return not is_comment

    @property
    def said(self) -> list[str]:
        """How many lines were left out so far."""
        counts = {
            "rows in which every cell is empty are left out": self.num_empty,
            "lines above the header are left out": self.num_before,
            "lines that begin with '#' are left out": self.num_comments,
        }
        return [f"{what}: {number}" for what, number in counts.items() if number]


def reading_notes(said: Sequence[str]) -> str:
    """What a reader decided, as the end of an error about what it read; empty if it decided nothing."""
    return f" (read so: {'; '.join(said)})" if said else ""


def _are_padded(sample: Sequence[str]) -> bool:
    """Whether nearly all lines end with commas, which a spreadsheet adds to text that it does not separate."""
    filled = [line.rstrip() for line in sample if line.strip()]
    return len(filled) > 1 and sum(line.endswith(",") for line in filled) > _PADDED * len(filled)


def _unpadded(line: str) -> str:
    return line.rstrip("\r\n").rstrip(",") + "\n"


def _with_tabs(line: str) -> str:
    return "\t".join(line.split()) + "\n"


def _fields(stream: Iterable[str], separator: str, *, quoted: bool) -> Iterator[TextRow]:
    csv.field_size_limit(max(csv.field_size_limit(), _MOST_FIELD_BYTES))  # global to the process, at first 128 kB
    reader = csv.reader(
        stream, delimiter=separator, quoting=csv.QUOTE_MINIMAL if quoted else csv.QUOTE_NONE, strict=True
    )
    try:
        for fields in reader:
            if fields:
                yield TextRow(reader.line_num, fields)
    except csv.Error as error:
        raise csv.Error(f"line {reader.line_num}: {error}") from None


def _has_quoted_fields(sample: Sequence[str]) -> bool:
    """Whether quotation marks of tab-separated text enclose fields, as Excel writes them, or are letters."""
    quoted = [line for line in sample if '"' in line]
    begins = any(field.startswith('"') for line in quoted for field in line.split("\t"))
    return begins and all(line.count('"') % 2 == 0 for line in quoted)


def _is_one_of_mutations(sample: Sequence[str]) -> bool:
    """Whether a file is one column of mutations, whose lists have the signs of separators: ``p.[A1P;D2N]``."""
    header, *cells = [line.strip() for line in sample if line.strip() and not line.startswith("#")] or [""]
    separated = [cell for cell in cells if any(sign in cell for sign in _SEPARATORS)]
    is_one = not any(sign in header for sign in _SEPARATORS) and bool(separated)
    return is_one and all(_MUTATIONS.fullmatch(cell) for cell in separated)


def _sniffed(sample: Sequence[str]) -> str:
    """The separator with which the most lines have one and the same number of fields, above 1; a space for any."""
    best, best_score = "", (0.0, 0)
    for separator in _SEPARATORS:
        widths = []
        with suppress(csv.Error):  # the sample may end inside a quoted field
            quoted = separator != "\t" or _has_quoted_fields(sample)
            for line in _fields(sample, separator, quoted=quoted):
                widths.append(len(line.fields) if any(map(str.strip, line.fields[1:])) else 1)
        (width, count), *_ = Counter(width for width in widths if width > 1).most_common(1) or [(1, 0)]
        # The header of a table of decimal commas has none, which tells them from separators.
        score = (count / max(1, len(widths)), width)
        if width > 1 and score > best_score:
            best, best_score = separator, score
    words = {len(line.split()) for line in sample if line.strip()}
    return best or (" " if len(words) == 1 and words != {1} else ",")


def from_header(found: list[TextRow]) -> tuple[list[TextRow], int]:
    """The lines from the header on, and how many stand above it: comments, and titles of a single field."""
    widths = Counter(len(line.fields) for line in found[:_SAMPLE])
    if not widths:
        return found, 0
    usual = widths.most_common(1)[0][0]
    first = 0
    while first < len(found) - 1:
        fields, after = found[first].fields, found[first + 1].fields
        num_filled = sum(1 for field in fields if field.strip())
        is_comment = fields[0].startswith("#") and not (len(fields) == usual > 1 and not after[0].startswith("#"))
        is_title = usual > 1 and num_filled == 1 and fields[0].strip() != ""
        if not (is_comment or is_title):
            break
        first += 1
    first += _num_titles(found[first:], usual)
    return found[first:], first


def _num_titles(found: Sequence[TextRow], usual: int) -> int:
    """How many lines of a few cells stand above a header, which is the first full line, of texts found in no row.

    A name stands over columns of one kind, so that a line is of titles where a cell reaches, up to the next one, over
    texts and numbers, and none over several columns of one kind. A line of another width is one of titles, too.
    """
    full = (at for at, line in enumerate(found[:_MOST_TITLES]) if len([*filter(str.strip, line.fields)]) == usual)
    number = next(full, 0)
    rows = [line.fields for line in found[number + 1 : number + _SAMPLE] if len(line.fields) == usual]
    columns = list(zip(*rows, strict=True))
    names = found[number].fields
    if not number or any(
        is_number(name) or name in (*cells, *MISSING) for name, cells in zip(names, columns, strict=False)
    ):
        return 0
    are_numbers = [sum(map(is_number, cells)) > len(cells) / 2 for cells in columns]
    return number if any(are_numbers) and all(_is_title(line, are_numbers) for line in found[:number]) else 0


def _is_title(line: TextRow, are_numbers: Sequence[bool]) -> bool:
    filled = [at for at, field in enumerate(line.fields) if field.strip()]
    below = [are_numbers[at:end] for at, end in pairwise([*filled, len(are_numbers)])]
    has_unit = any(name_and_unit(line.fields[at])[1] for at in filled)
    reaches = any(len({*kinds}) > 1 for kinds in below) and not any(len(kinds) > len({*kinds}) == 1 for kinds in below)
    return len(line.fields) != len(are_numbers) or (reaches and not has_unit)
