"""FASTA as a table: labels in headers become columns, and files of labels beside it are joined by id.

In: the text of FASTA files. Out: a `Table` with the columns ``id``, ``sequence`` and those of the headers. Kept:
nothing. Headers may be written as

    >Sequence0 TARGET=1.0 SET=train VALIDATION=False      as FLIP and biotrainer write them: a column for each name
    >Q9H400 Cell.membrane-M test                          as DeepLoc writes them: location, and membrane M, S or U
    >0|beta-lactamase_P20P|1.581                          fields between bars: header 1, header 2, header 3
    >Q9H400 | Homo sapiens | 7.1                          the same
    >non-AMP_12                                           prefix, if nothing else stands in any header

Where nearly all records have a second line as long as the sequence and of few kinds of letters, it is the column
``labels``, as SignalP, DeepTMHMM and TMbed write it.
"""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import chain, dropwhile, islice
from typing import NamedTuple

from data.sources.fasta_text import label_lines, records_of
from finetune.tables.table import Table

ID, SEQUENCE, LABELS, MASK, PREFIX = "id", "sequence", "labels", "mask", "prefix"
UNLABELLED = "-"
"""What stands for a residue whose label is masked."""

_ATTRIBUTE = re.compile(r"(?:^|[\s;])([A-Za-z_]\w*)=(.*?)(?=[\s;]+[A-Za-z_]\w*=|[\s;]*$)")
_DEEPLOC = re.compile(r"(?P<location>\S+)-(?P<membrane>[MSU])(?:\s+(?P<rest>.*))?")
_UNIPROT = ("sp|", "tr|", "gi|", "ref|", "pdb|", "gb|", "UniRef")
_OF_DATABASE = {"OX", "PE", "SV", "n", "TaxID"}
"""Numbers in UniProt's headers that say what the database has: taxon, evidence, version, size of a cluster."""
_COUNTED = re.compile(r"(?P<word>.*?[^\W\d_].*?)[\W_]*(?P<number>\d+)")
_MOST_WORDS, _LEAST_OF_A_WORD = 10, 10
"""Words with which ids begin, at most, and ids of each, at least, that are classes: ``AMP_1``, ``non-AMP_2``."""
_SPARSE = 10
"""Largest number in such ids over the number of records: more is that of a database."""
_JUDGED = 1000
"""Records that show whether labels stand below the sequences."""


class FastaRecord(NamedTuple):
    """A record of a FASTA file."""

    header: str
    letters: str
    """Residues as written, without whitespace."""
    labels: str | None = None
    """The line below the sequence, a letter for each residue."""


def record_table(name: str, records: Sequence[FastaRecord], layout: "HeaderLayout", first: int) -> Table:
    """Some records of a FASTA file as rows.

    Args:
        name: the file, for errors.
        records: one after another in the file.
        layout: of all headers of the file.
        first: number of the first of them, from 1.
    """
    import pyarrow as pa

    columns: dict[str, list[str | None]] = {
        ID: [_id(record.header) for record in records],
        SEQUENCE: [record.letters for record in records],
    }
    columns |= layout.columns([record.header for record in records])
    if layout.are_words:
        del columns[ID]
    if layout.has_labels:
        columns[LABELS] = [record.labels for record in records]
    arrays = {column: pa.array(cells, pa.string()) for column, cells in columns.items()}
    return Table(name, pa.table(arrays), first, row_word="record")


def fasta_records(name: str, lines: Iterable[str]) -> list[FastaRecord]:
    """Each record, of which no two have one id.

    Raises:
        ValueError: it is empty or no FASTA; a record has no id, or one that another record has.
    """
    seen: dict[str, int] = {}
    records = []
    for number, record in enumerate(fasta_stream(name, lines), 1):
        record_id = _id(record.header)
        if record_id in seen:
            raise ValueError(
                f"{name}: records {seen[record_id]} and {number} are both called {record_id!r}; give each its own id"
            )
        seen[record_id] = number
        records.append(record)
    return records


def fasta_stream(name: str, lines: Iterable[str]) -> Iterator[FastaRecord]:
    """Each record as they come; two of them may have one id.

    Raises:
        ValueError: it is empty or no FASTA; a record has no id, or labels that are not as many as its residues.
    """
    filled = dropwhile(lambda line: not line.strip(), lines)
    begin = next(filled, "").lstrip()
    if not begin.startswith(">"):
        first = repr(begin.partition("\n")[0][:60]) if begin else "nothing: it is empty"
        raise ValueError(f"{name}: not FASTA: the first line is {first}, but a FASTA file starts with '>'")
    raw = records_of(chain([begin], filled))
    judged = list(islice(raw, _JUDGED))
    has_labels = bool(label_lines([below for _, below in judged]))
    for number, (header, below) in enumerate(chain(judged, raw), 1):
        if not header:
            raise ValueError(f"{name}: record {number} has no id; write one after '>'")
        if has_labels and len(below) > 1 and list(map(len, below)) != [len(below[0])] * 2:
            raise ValueError(
                f"{name}: record {number}, {header[:60]!r}, has lines of {', '.join(str(len(line)) for line in below)} "
                "letters, where others have a sequence and as many labels; write one line of each, or no labels"
            )
        yield FastaRecord(header, *below[:2]) if has_labels and below else FastaRecord(header, "".join(below))


def _id(header: str) -> str:
    return header.split(None, 1)[0]


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
    for column in (each for each in labels.columns if each != ID):
        name = LABELS if column == SEQUENCE else column
        if name in cells.column_names:
            raise ValueError(f"{labels.name}: has a column {name!r}, and so has {table.name}; rename one of them")
        cells = cells.append_column(name, labels.cells.column(column).take(pa.array(rows)))
        added.append(name)
    said = (*table.said, *labels.said, f"{', '.join(added)} of {labels.name} are joined by id")
    joined = replace(table, cells=cells, said=said)
    if LABELS in added and SEQUENCE in table.columns:
        for record_id, letters, below in zip(*map(joined.column, (ID, SEQUENCE, LABELS)), strict=True):
            if len(below or "") != len((letters or "").removesuffix("*")):
                raise ValueError(
                    f"{labels.name}: {record_id!r} has {len(below or '')} labels and {len(letters or '')} residues; "
                    "each residue has one letter, '-' for one without a label"
                )
    return joined


def with_mask(table: Table, mask: Table) -> Table:
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
    cells = table.column(LABELS)
    num_masked = 0
    for index, labels in enumerate(cells):
        bits = masks[rows[index]] or ""
        if labels is None:
            continue
        if set(bits) - {"0", "1"}:
            raise ValueError(f"{mask.name}: {table.column(ID)[index]!r} has other letters than 0 (no label) and 1")
        if len(bits) != len(labels):
            raise ValueError(
                f"{mask.name}: {table.column(ID)[index]!r} has a mask of {len(bits)} and {len(labels)} labels; "
                "a mask has a 0 or 1 for each residue"
            )
        cells[index] = "".join([UNLABELLED if bit == "0" else label for bit, label in zip(bits, labels, strict=True)])
        num_masked += bits.count("0")
    changed = table.cells.set_column(table.columns.index(LABELS), LABELS, pa.array(cells, pa.string()))
    said = f"residues without a label, by the mask {mask.name}, are written as {UNLABELLED!r}: {num_masked}"
    return replace(table, cells=changed, said=(*table.said, said))


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


class HeaderLayout:
    """What stands in the headers of a FASTA file after the id, as columns; only what is there in some record.

    Args:
        records: all of the file.
    """

    def __init__(self, records: Iterable[FastaRecord]) -> None:
        self._names: dict[str, None] = {}
        self._bars: set[int] = set()
        self._num = 0
        self._prefixes = Counter[str]()
        self._largest = 0
        self._are_deeploc = True
        self._are_uniprot = True
        self._has_words = False
        self._has_words_of_deeploc = False
        self.has_labels = False
        """Whether labels stand below a sequence."""
        for header, _, labels in records:
            self.has_labels |= labels is not None
            record_id, rest = _id(header), _rest(header)
            words = _ATTRIBUTE.sub("", rest).strip()
            match = _DEEPLOC.fullmatch(words)
            self._num += 1
            if len(self._prefixes) <= _MOST_WORDS:
                self._prefixes[_prefix(record_id)] += 1
                counted = _COUNTED.fullmatch(record_id)
                self._largest = max(self._largest, int(counted["number"]) if counted else 0)
            self._names |= dict.fromkeys(name for name, _ in _ATTRIBUTE.findall(rest))
            self._are_deeploc &= match is not None
            self._has_words |= bool(words)
            self._has_words_of_deeploc |= match is not None and bool((match["rest"] or "").strip())
            self._bars.add(len(_fields(header)) - 1)
            self._are_uniprot &= record_id.startswith(_UNIPROT)

    @property
    def said(self) -> tuple[str, ...]:
        """What was decided, for the user."""
        shown = ", ".join(map(repr, sorted(self._prefixes)))
        said = f"ids begin with {shown}; that is the column {PREFIX!r}"
        labels = f"labels stand below the sequences; they are the column {LABELS!r}"
        left_out = ", ".join(filter(self._is_of_database, self._names))
        of_database = f"numbers of the database in UniProt's headers are no columns: {left_out}"
        return (*(of_database,) * bool(left_out), *(said,) * self._has_prefixes, *(labels,) * self.has_labels)

    def _is_of_database(self, name: str) -> bool:
        return self._are_uniprot and name in _OF_DATABASE

    @property
    def are_words(self) -> bool:
        """Whether ids are words alone, such as ``positive``, that tell no record from another."""
        return self._has_prefixes and not self._largest

    @property
    def _has_prefixes(self) -> bool:
        """Whether ids begin with few words, of which each is counted; and nothing else stands in the headers."""
        is_all = not (self._names or self._has_words or self.has_labels) and self._bars == {0}
        are_few = 2 <= len(self._prefixes) <= _MOST_WORDS and min(self._prefixes.values()) >= _LEAST_OF_A_WORD
        return is_all and are_few and self._largest <= _SPARSE * self._num

    def columns(self, headers: Sequence[str]) -> dict[str, list[str | None]]:
        """The columns of some headers of the file."""
        names = [name for name in self._names if not self._is_of_database(name)]
        attributes = [dict(_ATTRIBUTE.findall(_rest(header))) for header in headers]
        taken = {ID, SEQUENCE}
        columns: dict[str, list[str | None]] = {
            (f"{name} 2" if name in taken else name): [found.get(name) for found in attributes] for name in names
        }
        words = [_ATTRIBUTE.sub("", _rest(header)).strip() for header in headers]
        is_deeploc = self._num > 1 and self._are_deeploc
        if is_deeploc:
            found = [match for text in words if (match := _DEEPLOC.fullmatch(text))]
            columns["location"] = [match["location"] for match in found]
            columns["membrane"] = [None if match["membrane"] == "U" else match["membrane"] for match in found]
            words = [(match["rest"] or "").strip() for match in found]
        has_fields = len(self._bars) == 1 and self._bars != {0} and not self._are_uniprot
        are_spaced = has_fields and any(" | " in header for header in headers)
        if not are_spaced and (self._has_words_of_deeploc if is_deeploc else self._has_words):
            columns["description"] = [text or None for text in words]
        if self._has_prefixes:
            columns[PREFIX] = [_prefix(_id(header)) for header in headers]
        if has_fields:
            for at in range(min(self._bars) + 1):
                columns[f"header {at + 1}"] = [_fields(header)[at] for header in headers]
        return columns


def _fields(header: str) -> list[str]:
    """The fields between the bars of a header: of all of it where blanks stand around them, else of its id."""
    return [each.strip() for each in (header if " | " in header else _id(header)).split("|")]


def _prefix(record_id: str) -> str:
    """An id without the number at its end; all of it where it is a word, or a number."""
    found = _COUNTED.fullmatch(record_id)
    return found["word"] if found else record_id


def _rest(header: str) -> str:
    return header.partition(_id(header))[2].strip()
