"""Delimited text to lines of fields: encoding and separator from the content, comments and blank lines left out.

In: the bytes of a file. Out: lines of fields with their numbers, and sentences about what was decided. Kept: nothing.
"""

import codecs
import csv
import io
import re
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice

_SAMPLE = 200
"""Lines from which the separator is found."""
_SEPARATORS = {",": "commas", ";": "semicolons", "\t": "tabs", "|": "vertical bars"}
_WORDS = {**_SEPARATORS, " ": "spaces"}
_HINT = re.compile(r"sep=(?P<separator>[,;\t|])\r?\n")
_NAMES = {"comma": ",", "semicolon": ";", "tab": "\t", "pipe": "|", **{sign: sign for sign in _SEPARATORS}}
_MOST_FIELD_BYTES = 64 << 20
_BOMS = ((codecs.BOM_UTF8, "utf-8-sig"), (codecs.BOM_UTF16_LE, "utf-16"), (codecs.BOM_UTF16_BE, "utf-16"))


@dataclass(frozen=True, slots=True)
class Line:
    """One line of a table, or several where a quoted field holds line ends."""

    number: int
    """The line in which it ends, from 1."""
    fields: list[str]


def decoded(content: bytes, name: str, encoding: str | None = None) -> tuple[str, list[str]]:
    """The text of a file, and what was decided about its encoding.

    A byte order mark decides; otherwise it is UTF-8, or else Windows-1252 or Latin-1, which is said.

    Args:
        content: bytes of the file.
        name: the file, for an error.
        encoding: the encoding, if the user names it.

    Raises:
        ValueError: it is not text, or not in the encoding that was named.
    """
    if encoding is not None:
        try:
            return content.decode(encoding), []
        except (LookupError, UnicodeDecodeError) as error:
            raise ValueError(
                f"{name}: cannot be read with encoding={encoding}: {error}; leave it out, or correct it"
            ) from None
    for mark, found in _BOMS:
        if content.startswith(mark):
            try:
                return content.decode(found), []
            except UnicodeDecodeError as error:
                raise ValueError(f"{name}: begins as {found}, and is not: {error}; save it as UTF-8") from None
    if b"\0" in content:
        raise ValueError(f"{name}: holds NUL bytes: it is no text, or UTF-16 without its mark; save it as UTF-8")
    try:
        return content.decode("utf-8"), []
    except UnicodeDecodeError as error:
        wrong = error
    line = content.count(b"\n", 0, wrong.start) + 1
    for found in ("cp1252", "latin-1"):
        try:
            text = content.decode(found)
        except UnicodeDecodeError:
            continue
        byte, letter = content[wrong.start], content[wrong.start : wrong.start + 1].decode(found)
        said = f"it is not UTF-8 (byte 0x{byte:02x} in line {line}); it was read as {found}, where that is {letter!r}"
        return text, [said]
    raise AssertionError("latin-1 has a letter for every byte")


def lines(text: str, name: str, separator: str | None = None) -> tuple[list[Line], list[str]]:
    """Lines of fields, from the header on; blank lines, empty rows and comments are left out.

    Args:
        text: the whole file.
        name: the file, for errors.
        separator: the separator, if the user names it: one character, or comma, semicolon, tab, pipe.

    Raises:
        ValueError: a quotation mark without its partner; a separator that is none.
    """
    said: list[str] = []
    if separator is None and (hint := _HINT.match(text)):  # which Excel writes and reads
        separator, text = hint["separator"], "\n" + text[hint.end() :]
    if separator is None:
        separator = _sniffed(text)
        if separator != ",":
            said.append(f"its fields are separated by {_WORDS[separator]}")
    else:
        if separator not in _NAMES:
            raise ValueError(f"{name}: separator is {separator!r}; allowed are comma, semicolon, tab, pipe")
        separator = _NAMES[separator]
    if separator == " ":
        text, separator = "\n".join("\t".join(line.split()) for line in text.split("\n")), "\t"
    try:
        found = list(_fields(text, separator))
    except csv.Error as error:
        raise ValueError(
            f"{name}: {error}: is a quotation mark left open? One inside a quoted field is written twice"
        ) from None
    kept = [line for line in found if any(map(str.strip, line.fields))]
    if len(found) > len(kept):
        said.append(f"rows in which every cell is empty are left out: {len(found) - len(kept)}")
    kept, num_before = from_header(kept)
    if num_before:
        said.append(f"lines above the header are left out: {num_before}")
    width = len(kept[0].fields) if kept else 0
    rows = [line for line in kept if not (line.fields[0].startswith("#") and len(line.fields) != width)]
    if len(kept) > len(rows):
        said.append(f"lines that begin with '#' are left out: {len(kept) - len(rows)}")
    if rows and rows[0].fields[0].startswith("#"):
        rows[0] = Line(rows[0].number, [rows[0].fields[0].lstrip("# "), *rows[0].fields[1:]])
    return rows, said


def _fields(text: str, separator: str) -> Iterator[Line]:
    csv.field_size_limit(max(csv.field_size_limit(), _MOST_FIELD_BYTES))  # global to the process, at first 128 kB
    quoted = separator != "\t" or _has_quoted_fields(text)
    stream = io.StringIO(text, newline="")
    reader = csv.reader(
        stream, delimiter=separator, quoting=csv.QUOTE_MINIMAL if quoted else csv.QUOTE_NONE, strict=True
    )
    try:
        for fields in reader:
            if fields:
                yield Line(reader.line_num, fields)
    except csv.Error as error:
        raise csv.Error(f"line {reader.line_num}: {error}") from None


def _has_quoted_fields(text: str) -> bool:
    """Whether quotation marks of tab-separated text enclose fields, as Excel writes them, or are letters."""
    quoted = [line for line in islice(io.StringIO(text), _SAMPLE) if '"' in line]
    begins = any(field.startswith('"') for line in quoted for field in line.split("\t"))
    return begins and all(line.count('"') % 2 == 0 for line in quoted)


def _sniffed(text: str) -> str:
    """The separator with which the most lines have one and the same number of fields, above 1; a space for any."""
    sample = "".join(islice(io.StringIO(text, newline=""), _SAMPLE))
    best, best_score = "", (0.0, 0)
    for separator in _SEPARATORS:
        widths = []
        with suppress(csv.Error):  # the sample may end inside a quoted field
            for line in _fields(sample, separator):
                widths.append(len(line.fields))
        (width, count), *_ = Counter(width for width in widths if width > 1).most_common(1) or [(1, 0)]
        # The header of a table of decimal commas has none, which tells them from separators.
        score = (count / max(1, len(widths)), width)
        if width > 1 and score > best_score:
            best, best_score = separator, score
    words = {len(line.split()) for line in sample.splitlines() if line.strip()}
    return best or (" " if len(words) == 1 and words != {1} else ",")


def from_header(found: list[Line]) -> tuple[list[Line], int]:
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
    return found[first:], first
