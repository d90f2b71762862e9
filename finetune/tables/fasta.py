"""FASTA as a table: labels in headers become columns, and files of labels beside it are joined by id.

In: the text of FASTA files. Out: a `Table` with the columns ``id``, ``sequence`` and those of the headers. Kept:
nothing. Headers may be written as

    >Sequence0 TARGET=1.0 SET=train VALIDATION=False      as FLIP and biotrainer write them: a column for each name
    >Q9H400 Cell.membrane-M test                          as DeepLoc writes them: location, and membrane M, S or U
    >0|beta-lactamase_P20P|1.581                          fields between bars: header 1, header 2, header 3
"""

import io
import re
from collections import Counter
from collections.abc import Sequence

from finetune.tables.table import Table

ID, SEQUENCE, LABELS, MASK = "id", "sequence", "labels", "mask"
UNLABELLED = "-"
"""What stands for a residue whose label is masked."""

_ATTRIBUTE = re.compile(r"(?:^|\s)([A-Za-z_]\w*)=(.*?)(?=\s+[A-Za-z_]\w*=|\s*$)")
_DEEPLOC = re.compile(r"(?P<location>\S+)-(?P<membrane>[MSU])(?:\s+(?P<rest>.*))?")
_UNIPROT = ("sp", "tr", "gi", "ref", "pdb", "gb", "UniRef")


def fasta_table(name: str, text: str) -> Table:
    """The records of a FASTA file as rows.

    Raises:
        ValueError: it is empty or no FASTA; a record has no id, or one that another record has.
    """
    import pyarrow as pa

    records = fasta_records(name, text)
    ids = [header.split(None, 1)[0] for header, _ in records]
    columns: dict[str, list[str | None]] = {ID: list(ids), SEQUENCE: [letters for _, letters in records]}
    columns |= _header_columns([header for header, _ in records])
    arrays = {column: pa.array(cells, pa.string()) for column, cells in columns.items()}
    return Table(name, pa.table(arrays), 1, row_word="record")


def fasta_records(name: str, text: str) -> list[tuple[str, str]]:
    """(header, letters) of each record, letters as they are written, without whitespace.

    Raises:
        ValueError: it is empty or no FASTA; a record has no id, or one that another record has.
    """
    from Bio.SeqIO.FastaIO import SimpleFastaParser

    begin = text.lstrip()
    if not begin.startswith(">"):
        first = repr(begin.partition("\n")[0][:60]) if begin else "nothing: it is empty"
        raise ValueError(f"{name}: not FASTA: the first line is {first}, but a FASTA file starts with '>'")
    records = [(header.strip(), letters) for header, letters in SimpleFastaParser(io.StringIO(begin))]  # type: ignore[no-untyped-call]
    seen: dict[str, int] = {}
    for number, (header, _) in enumerate(records, 1):
        if not header:
            raise ValueError(f"{name}: record {number} has no id; write one after '>'")
        record_id = header.split(None, 1)[0]
        if record_id in seen:
            raise ValueError(
                f"{name}: records {seen[record_id]} and {number} are both called {record_id!r}; give each its own id"
            )
        seen[record_id] = number
    return records


def with_labels(table: Table, labels: Table) -> Table:
    """A table with the columns of another one joined by id; what that one calls its sequence is the labels.

    Args:
        table: has a column ``id``.
        labels: FASTA whose letters are labels of residues, or a table with a column ``id``.

    Raises:
        ValueError: it has no ``id``; a row of `table` has no labels, or labels have no row; as many labels as residues
            are needed.
    """
    import pyarrow as pa

    rows = _rows_by_id(table, labels, "labels")
    cells, added = table.cells, list[str]()
    for column in labels.columns:
        if column == ID:
            continue
        name = LABELS if column == SEQUENCE else column
        if name in cells.column_names:
            raise ValueError(f"{labels.name}: has a column {name!r}, and so has {table.name}; rename one of them")
        cells = cells.append_column(name, labels.cells.column(column).take(pa.array(rows)))
        added.append(name)
    joined = Table(
        table.name,
        cells,
        table.first_row,
        table.lines,
        (*table.said, *labels.said, f"{', '.join(added)} of {labels.name} are joined by id"),
        table.row_word,
    )
    if LABELS in added and SEQUENCE in table.columns:
        _require_equal_lengths(joined, LABELS, labels.name)
    return joined


def masked(table: Table, mask: Table) -> Table:
    """A table whose residue labels are ``-`` where a mask has 0: they were not observed.

    Raises:
        ValueError: there are no labels; a mask is missing, of another length, or has another letter than 0 and 1.
    """
    import pyarrow as pa

    if LABELS not in table.columns:
        raise ValueError(
            f"{table.name}: a mask says which labels exist; give the labels too ('?labels=FILE&mask=FILE')"
        )
    rows, masks = _rows_by_id(table, mask, "a mask"), mask.column(SEQUENCE)
    cells: list[str | None] = []
    num_masked = 0
    for index, labels in enumerate(table.column(LABELS)):
        bits = masks[rows[index]] or ""
        if labels is None:
            cells.append(None)
            continue
        if set(bits) - {"0", "1"}:
            raise ValueError(f"{mask.name}: {table.column(ID)[index]!r} has other letters than 0 (no label) and 1")
        if len(bits) != len(labels):
            raise ValueError(
                f"{mask.name}: {table.column(ID)[index]!r} has a mask of {len(bits)} and {len(labels)} labels; "
                "a mask has a 0 or 1 for each residue"
            )
        cells.append("".join([UNLABELLED if bit == "0" else label for bit, label in zip(bits, labels, strict=True)]))
        num_masked += bits.count("0")
    at = table.columns.index(LABELS)
    changed = table.cells.set_column(at, LABELS, pa.array(cells, pa.string()))
    said = f"residues without a label, by the mask {mask.name}, are written as {UNLABELLED!r}: {num_masked}"
    return Table(table.name, changed, table.first_row, table.lines, (*table.said, said), table.row_word)


def _rows_by_id(table: Table, other: Table, what: str) -> list[int]:
    """For each row of `table` the row of `other` with its id."""
    for each in (table, other):
        each.require(ID, "the column by which files are joined")
    there: dict[str | None, int] = {}
    for index, record_id in enumerate(other.column(ID)):
        if record_id in there:
            raise ValueError(f"{other.row(index)}: the id {record_id!r} stands twice; files are joined by distinct ids")
        there[record_id] = index
    ids = table.column(ID)
    for index, record_id in enumerate(ids):
        if record_id not in there:
            raise ValueError(f"{table.row(index)}: {record_id!r} has no {what.removeprefix('a ')} in {other.name}")
    if len(there) > len(set(ids)):
        extra = next(record_id for record_id in there if record_id not in set(ids))
        raise ValueError(f"{other.row(there[extra])}: {extra!r} is not in {table.name}")
    return [there[record_id] for record_id in ids]


def _require_equal_lengths(table: Table, column: str, file: str) -> None:
    for record_id, letters, labels in zip(*map(table.column, (ID, SEQUENCE, column)), strict=True):
        if len(labels or "") != len((letters or "").removesuffix("*")):
            raise ValueError(
                f"{file}: {record_id!r} has {len(labels or '')} labels and {len(letters or '')} residues; "
                "each residue has one letter, '-' for one without a label"
            )


def _header_columns(headers: Sequence[str]) -> dict[str, list[str | None]]:
    """What stands in headers after the id, as columns; only what is there in some record."""
    rest = [header.partition(header.split(None, 1)[0])[2].strip() for header in headers]
    attributes = [dict(_ATTRIBUTE.findall(text)) for text in rest]
    names = list(Counter(name for found in attributes for name in found))
    taken = {ID, SEQUENCE}
    columns: dict[str, list[str | None]] = {
        (f"{name} 2" if name in taken else name): [found.get(name) for found in attributes] for name in names
    }
    words = [_ATTRIBUTE.sub("", text).strip() for text in rest]
    if len(words) > 1 and all(found := [_DEEPLOC.fullmatch(text) for text in words]):
        columns["location"] = [match["location"] for match in found if match]
        columns["membrane"] = [None if match["membrane"] == "U" else match["membrane"] for match in found if match]
        words = [(match["rest"] or "").strip() for match in found if match]
    if any(words):
        columns["description"] = [text or None for text in words]
    ids = [header.split(None, 1)[0] for header in headers]
    widths = {record_id.count("|") for record_id in ids}
    if len(widths) == 1 and widths != {0} and not all(record_id.startswith(_UNIPROT) for record_id in ids):
        for at in range(widths.pop() + 1):
            columns[f"header {at + 1}"] = [record_id.split("|")[at] for record_id in ids]
    return columns
