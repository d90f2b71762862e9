"""Lines of fields to a table: header lines, distinct names, as many fields in every row as there are columns.

In: lines of fields, of delimited text or of a sheet. Out: a `Table`. Kept: nothing.
"""

import re
from collections.abc import Sequence
from itertools import islice
from typing import TYPE_CHECKING

from data.alphabet import STANDARD_RESIDUES
from finetune.tables.numbers import MISSING, is_number, is_unit, name_and_unit
from finetune.tables.table import Table
from finetune.tables.text import TextRow, reading_notes

if TYPE_CHECKING:
    import pyarrow

_FIRST_ROWS = 100
"""Rows that show which columns hold numbers."""
_ROWS_AT_A_TIME = 4096
_NAME = 40
"""Letters of a column's name that errors show."""
_ORDINALS = ("first", "second", "third")
_LETTERS_OF_A_SEQUENCE = 10
_LEAST_LETTERS, _STANDARD = 7, 0.8
"""Letters of sequences of which a first line is known to be a row; names of columns are shorter, or are these."""
_LONGEST_NAME = 20
"""Letters of amino acids above which no name of a column is one word."""
_NAME_OF_SEQUENCES = re.compile("PEPTIDE|SEQ")


def parse_table(
    name: str,
    lines: Sequence[TextRow],
    said: Sequence[str],
    header_lines: str | None = None,
    skipped: Sequence[str] = (),
) -> Table:
    """A table from its lines, of which the first is the header.

    A second line, and a third, is a header too if it holds units, or the names below the merged cells of the first; its
    texts are joined to the names: ``IC50`` and ``nM`` become ``IC50 (nM)``.

    Args:
        name: the table, for errors.
        lines: from the header on.
        said: what was decided before.
        header_lines: "1", "2" or "3", if the user says how many there are.
        skipped: which lines were left out, for errors.

    Raises:
        ValueError: there is no row; or a row has more or fewer fields than there are columns.
    """
    said = list(said)
    if len(lines) < 2:
        found = f"only the header {_shown(lines[0].fields)}" if lines else "nothing"
        raise ValueError(
            f"{name}: has no row, {found}; a table has a header and a row for each measurement"
            f"{reading_notes([*said, *skipped])}"
        )
    rows = list(lines[1:])
    header = [" ".join(field.split()) for field in lines[0].fields]
    if header_lines is None and _is_like(header, rows):
        said.append("the first line is a row like those below it, so that the table has no header ('?header_lines=1')")
        header, rows = [""] * len(header), list(lines)
    while header and not header[-1] and all(len(row.fields) < len(header) or not row.fields[-1] for row in rows):
        header.pop()
    if _have_row_names(header, rows):
        said.append("each row begins with a name that has no column; it is called 'row name'")
        header = ["row name", *header]
    for number in range(1, len(_ORDINALS)):
        given = "" if header_lines is None or int(header_lines) <= number else "names"
        second = _second_header(header, rows) if header_lines is None else given
        if not second:
            break
        below, rows = [" ".join(field.split()) for field in rows[0].fields], rows[1:]
        said.append(
            f"line {lines[number].number} is a {_ORDINALS[number]} header, of {second}; it is joined to the names of "
            "the columns"
        )
        header = _joined(header, below)
        if not rows:
            raise ValueError(f"{name}: has {number + 1} header lines and no row")
    columns, renamed = _distinct(header)
    if renamed:
        said.append(f"columns without a name of their own are called {', '.join(map(repr, renamed[:8]))}")
    try:
        return table_of(name, columns, rows, said)
    except ValueError as error:
        raise ValueError(f"{error}{reading_notes([*said, *skipped])}") from None


def _shown(columns: Sequence[str]) -> str:
    """The first names of columns, each cut to a few words."""
    return ", ".join(repr(name[:_NAME]) for name in columns[:6]) + ", ..." * (len(columns) > 6)


def table_of(name: str, columns: Sequence[str], rows: Sequence[TextRow], said: Sequence[str] = ()) -> Table:
    """Rows below a header as a table.

    Raises:
        ValueError: a row has more or fewer fields than there are columns.
    """
    return Table(name, _cells(name, columns, rows), rows[0].number, [row.number for row in rows], tuple(said))


def _cells(name: str, columns: Sequence[str], rows: Sequence[TextRow]) -> "pyarrow.Table":
    """All rows as columns of text.

    Raises:
        ValueError: a row has more or fewer fields than there are columns.
    """
    import pyarrow as pa

    width = len(columns)
    schema = pa.schema([(column, pa.string()) for column in columns])

    def fields(row: TextRow) -> list[str]:
        found = row.fields
        if len(found) == width:
            return found
        if len(found) > width and not any(map(str.strip, found[width:])):
            return found[:width]
        fewer = len(found) < width
        shown = _shown(columns)
        raise ValueError(
            f"{name}: row {row.number} has {len(found)} fields, and the header {width} ({shown}); "
            + ("write the missing ones, empty if need be" if fewer else "put quotes around a field with a separator")
        )

    remaining, batches = iter(rows), []
    while some := [fields(row) for row in islice(remaining, _ROWS_AT_A_TIME)]:
        batches.append(pa.record_batch([pa.array(cells, pa.string()) for cells in zip(*some, strict=True)], schema))
    return pa.Table.from_batches(batches, schema)


def _have_row_names(header: Sequence[str], rows: Sequence[TextRow]) -> bool:
    """Whether each row begins with a name that has no column, as R's write.table writes it."""
    first = rows[:_FIRST_ROWS]
    if any(len(row.fields) != len(header) + 1 or not row.fields[-1].strip() for row in first):
        return False
    return len({row.fields[0] for row in first}) == len(first)


def _is_like(header: Sequence[str], rows: Sequence[TextRow]) -> bool:
    """Whether a first line is a row: a sequence above sequences, and a number above each column of numbers.

    Where no column holds numbers, another cell stands below it too, or the sequence is longer than any name.
    """
    first = [row.fields for row in rows[:_FIRST_ROWS] if len(row.fields) == len(header)]
    above = {"sequence": list[bool](), "number": list[bool](), "other": list[bool]()}
    for at, name in enumerate(header):
        cells = [fields[at].strip() for fields in first if fields[at].strip()]
        if cells and sum(map(is_number, cells)) > 0.8 * len(cells):
            above["number"].append(is_number(name))
        elif cells and sum(_is_peptide(cell) for cell in cells) > 0.8 * len(cells) < 2 * len({*cells}):
            above["sequence"].append(_is_peptide(name) and _NAME_OF_SEQUENCES.search(name) is None)
        else:
            above["other"].append(name in cells)
    is_long = any(_is_peptide(name) for name in header if len(name) > _LONGEST_NAME)
    is_sure = bool(above["number"]) or any(above["other"]) or is_long
    return any(above["sequence"]) and all(above["number"]) and is_sure


def _is_peptide(text: str) -> bool:
    """Whether a cell is letters of amino acids, of which some may be modified ones such as X or d."""
    standard = sum(map(text.count, STANDARD_RESIDUES))
    return len(text) >= _LEAST_LETTERS and text.isalpha() and standard >= _STANDARD * len(text)


def _second_header(header: Sequence[str], rows: Sequence[TextRow]) -> str:
    """What a second header line holds, "units" or "names"; empty if the first row is data.

    It has no number, and its units stand over columns of numbers. Names are taken for names only where the first line
    repeats names or leaves them out, as merged cells do: over the columns of numbers, or, as IEDB writes it, over half
    of all columns, if no text of theirs stands further down.
    """
    if len(rows) < 2 or len(rows[0].fields) != len(header):
        return ""
    below, rest = rows[0].fields, [row.fields for row in rows[1 : _FIRST_ROWS + 1] if len(row.fields) == len(header)]
    if any(_is_data(field) for field in below):
        return ""
    over = []
    for at in range(len(header)):
        cells = [fields[at] for fields in rest if fields[at].strip() and not _is_missing(fields[at])]
        if cells and sum(is_number(cell) for cell in cells) > 0.8 * len(cells):
            over.append(at)
    texts = [below[at].strip() for at in over if below[at].strip() and not _is_missing(below[at])]
    if _is_below_merged(header, below, rest):
        return "names"
    if not texts:
        return ""
    units = [text.strip("()[] ") for text in texts]
    if all(map(is_unit, units)) and not any(_is_missing(below[at]) and below[at].strip() != "-" for at in over):
        return "units"
    tops = [header[at] for at in over]
    merged = any(not top for top in tops) or len(set(filter(None, tops))) < len([top for top in tops if top])
    return "names" if merged and len(texts) == len(over) else ""


def _is_below_merged(header: Sequence[str], below: Sequence[str], rest: Sequence[Sequence[str]]) -> bool:
    """Whether texts stand below names that most columns share, and nowhere in their columns."""
    merged = [at for at, top in enumerate(header) if not top or header.count(top) > 1]
    if 2 * len(merged) < len(header) or len(rest) < 2:
        return False
    named = {(header[at], below[at].strip()) for at in merged}
    is_new = all(below[at].strip() and below[at] not in (fields[at] for fields in rest) for at in merged)
    return is_new and len(named) == len(merged) > 1


def _is_missing(text: str) -> bool:
    return text.strip().lower() in {word.lower() for word in MISSING}


def _is_data(text: str) -> bool:
    """Whether a cell of what may be a second header can only be data: a number, or the letters of a protein."""
    text = text.strip()
    is_sequence = text.isalpha() and len(text) >= (_LETTERS_OF_A_SEQUENCE if text.isupper() else 40)
    return bool(text) and (is_number(text) or is_sequence)


def _joined(header: Sequence[str], below: Sequence[str]) -> list[str]:
    joined, last = [], ""
    for top, text in zip(header, below, strict=False):
        last = top or (last if text else "")
        bare = text.strip("()[] ")
        if not text or text == "-":
            joined.append(last if top else "")
        elif is_unit(bare) and last:
            joined.append(last if name_and_unit(last)[1] == bare else f"{last} ({bare})")
        else:
            joined.append(f"{last} {text}".strip())
    return joined + list(header[len(below) :])


def _distinct(header: Sequence[str]) -> tuple[list[str], list[str]]:
    """Names of which no two are equal, and those that were made: ``column 3``, ``Tm 2``."""
    columns: dict[str, None] = {}
    made, given = [], set(header)
    for number, name in enumerate(header, 1):
        wanted = found = name or f"column {number}"
        times = 1
        while found in columns or (found != name and found in given):
            times += 1
            found = f"{wanted} {times}"
        columns[found] = None
        if found != name:
            made.append(found)
    return list(columns), made
