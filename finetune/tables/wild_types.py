"""Wild types: the proteins that the mutations of a table change, and how the table numbers their residues.

In: a FASTA file, or a column of sequences; the residues that rows expect. Out: `WildTypes`: a name for each row, and
the letters; `ResidueNumbering`: an offset for each wild type. Kept: nothing.

Authors count residues from the start codon, from the mature protein or from a construct's first residue. The offset
between their numbers and the wild type's residues is found: the smallest with which every letter fits.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from string import ascii_uppercase

import numpy as np

from data.homology.name_table import names
from data.settings import LetterPolicy, SourceContent
from data.sources.protein import is_missing, letters_of, rejection, shown
from finetune.tables.fasta import fasta_records
from finetune.tables.location import TableLocation
from finetune.tables.settings import TableSettings
from finetune.tables.table import Table
from finetune.tables.text import TextFile
from zymogen.settings.origin import format_option
from zymogen.settings.section import unknown_word

_ALIKE, _LIKELY = 0.06, 0.01
"""Chance that two residues of proteins are equal; chance of an offset above which it is not believed."""
_FEW = 3
"""Positions of which one may misfit."""
_MOST_MISFITS = 0.1
"""Share of the mutated residues that the wild type may contradict, where rows may be left out."""
_SHOWN_OFFSETS = 3
_UNKNOWN_RESIDUES = b"?*.-"
_LEAST_LETTERS = 3
"""Letters of a protein that has signs of unknown residues; 'n.d.' has fewer."""


@dataclass(frozen=True, slots=True)
class Substitution:
    """One residue instead of another."""

    old: str
    """Empty where the authors do not write it, as in ``3F``."""
    number: int
    """The number that the authors give it."""
    new: str


@dataclass(frozen=True, slots=True)
class WildTypes:
    """The proteins that the rows of a table change."""

    letters: Mapping[str, str]
    """Name -> letters."""
    of_rows: Sequence[str]
    """(rows,) name of each row's; empty for a row without one."""
    unusable: Mapping[int, str]
    """Row -> why it has none."""


def read_wild_types(location: str, content: SourceContent = "protein") -> dict[str, str]:
    """Name -> letters of the proteins of a FASTA file.

    Raises:
        ValueError: it does not exist, is no FASTA, or a record is no protein.
    """
    packed = TableLocation.of(location).read()
    found: dict[str, str] = {}
    for header, letters, _ in fasta_records(location, TextFile.of(location, lambda: iter([packed])).lines(None)):
        cleaned = letters_of(letters.encode("utf-8", "replace")).upper()
        if refused := rejection(header.encode(), cleaned, "refuse", content):
            raise ValueError(f"{location}: {header.split()[0]!r} {refused.reason}")
        found[header.split()[0]] = cleaned.decode()
    return found


def record_named(name: str, wild_types: Mapping[str, str]) -> str | None:
    """The id of the record that a table calls `name`: its id, or the accession in it; None if there is no such one."""
    if name in wild_types:
        return name
    by_accession = [each for each in wild_types if name.encode() in names(each.encode())]
    return by_accession[0] if len(by_accession) == 1 else None


def wild_types_of(table: Table, settings: TableSettings, content: SourceContent = "protein") -> WildTypes:
    """The proteins that the rows change: records of a file, or the sequence that stands in each row.

    Raises:
        ValueError: the file or a column is not there; a row must name one of several records and no column is named.
    """
    if settings.wild_type is None:
        return own_wild_types(table, settings.sequence[0], content)
    records = read_wild_types(settings.wild_type, content)
    return named_wild_types(table, settings.protein, records, settings.wild_type)


def named_wild_types(table: Table, protein: str | None, records: Mapping[str, str], file: str) -> WildTypes:
    """Records by name.

    Args:
        table: the table.
        protein: column that names each row's record; without it there must be one record.
        records: name -> letters.
        file: that holds them, for errors.

    Raises:
        ValueError: there is no such column; there are several records and no column.
    """
    if protein is None:
        if len(records) != 1:
            raise ValueError(
                f"{file}: holds {len(records)} proteins ({', '.join(list(records)[:5])}); name the column that "
                f"says which of them a row changes{format_option('data.protein', before=' with ')}, or keep one record"
            )
        return WildTypes(records, list(records) * table.num_rows, {})
    table.require(protein, format_option("data.protein") or "column")
    found, unusable = [], {}
    for index, text in enumerate(table.column(protein)):
        name = record_named((text or "").strip(), records)
        if name is None:
            unusable[index] = f"{unknown_word(f'its {protein}', text, list(records)[:50])} (of {file})"
        found.append(name or "")
    return WildTypes(records, found, unusable)


def letters_in(cell: str | None, policy: LetterPolicy, content: SourceContent) -> tuple[str, str]:
    """Upper-case letters of a cell; and why it holds no protein, empty if it does.

    Args:
        cell: of a column of sequences.
        policy: what becomes of signs of unknown residues; a cell with any other sign, such as '#N.A.#', is no protein.
        content: "any" if letters are amino acids whatever they look like.
    """
    raw = letters_of((cell or "").encode("ascii", "replace")).upper()
    if is_missing(raw):
        return "", f"says {cell!r}" if raw else "is empty"
    signs = raw.translate(None, ascii_uppercase.encode())
    others = signs.translate(None, _UNKNOWN_RESIDUES)
    if others or (signs and len(raw) - len(signs) < _LEAST_LETTERS):
        sign, text = (others or signs)[:1], shown(cell or "")
        return "", f"says {text}, where {sign.decode()!r} at residue {raw.index(sign) + 1} is no letter"
    refused = rejection(b"protein", raw, policy, content)
    return raw.decode("ascii"), refused.reason if refused else ""


def own_wild_types(table: Table, column: str, content: SourceContent = "protein") -> WildTypes:
    """The sequence in each row, which is its name too: rows with one sequence are of one wild type."""
    table.require(column, format_option("data.sequence") or "column")
    cells = table.column(column)
    read = {cell: letters_in(cell, "refuse", content) for cell in dict.fromkeys(cells)}
    of_rows = ["" if why else letters for letters, why in (read[cell] for cell in cells)]
    unusable = {at: f"its column {column!r} {read[cell][1]}" for at, cell in enumerate(cells) if read[cell][1]}
    return WildTypes({each: each for each in of_rows if each}, of_rows, unusable)


class ResidueNumbering:
    """What is added to the numbers of mutations to count residues of each wild type from 1.

    Args:
        given: what is added, if the user says so.
        leaves_out: whether a few rows may contradict their wild type.
    """

    def __init__(self, given: int | None = None, *, leaves_out: bool = False) -> None:
        self.offsets: dict[str, int] = {}
        """Wild type -> what is added, once it is settled."""
        self.unsure: dict[str, str] = {}
        """Wild type -> why its numbering is not known, where rows may be left out and others of the table fit."""
        self._given, self._leaves_out = given, leaves_out
        self._letters: dict[str, str] = {}
        self._expected: dict[str, dict[tuple[int, str], str]] = {}
        """Wild type -> number and residue -> the row that says so first, as a user counts."""
        self._columns: Sequence[str] = ()

    def count(
        self,
        table: Table,
        columns: Sequence[str],
        wild_types: WildTypes,
        parsed: Sequence[tuple[Substitution, ...] | None],
    ) -> None:
        """Take the residues that the rows of a table, or of a part of it, expect."""
        self._columns = columns
        self._letters |= wild_types.letters
        for index, (name, changes) in enumerate(zip(wild_types.of_rows, parsed, strict=True)):
            expected = self._expected.setdefault(name, {})
            for change in changes or ():
                if change.old:
                    expected.setdefault((change.number, change.old), table.shown(index))

    def infer(self, table: Table) -> list[str]:
        """Find what is added, and say it where it was not given and is not 0.

        Args:
            table: for errors.

        Raises:
            ValueError: none fits, or it rests on too few positions.
        """
        known = {name: expected for name, expected in self._expected.items() if name}
        for name, expected in known.items():
            try:
                self.offsets[name] = self._offset(table, expected, name, self._letters[name])
            except ValueError as error:
                self.unsure[name] = str(error).removeprefix(f"{table.name}: ")
                may_misfit = _MOST_MISFITS * sum(map(len, known.values())) if self._leaves_out else 0
                if sum(len(known[each]) for each in self.unsure) > may_misfit:
                    raise
        moved = [(name, offset) for name, offset in self.offsets.items() if offset and self._given is None]
        said = [
            f"the numbers of its mutations are those of {_short(name)} {-offset:+d}: residue 1 of the wild type is "
            f"number {1 - offset}"
            for name, offset in moved[:_SHOWN_OFFSETS]
        ]
        more = f"the numbers of mutations of {len(moved) - _SHOWN_OFFSETS} more wild types are shifted, too"
        return [*said, *[more] * (len(moved) > _SHOWN_OFFSETS)]

    def _offset(self, table: Table, expected: Mapping[tuple[int, str], str], name: str, wild_type: str) -> int:
        """What is added to these numbers to count residues of the wild type from 1."""
        given = self._given
        numbers = np.array([number for number, _ in expected], np.int64)
        letters = np.frombuffer("".join(old for _, old in expected).encode(), np.uint8)
        residues = np.frombuffer(wild_type.encode(), np.uint8)

        def fitting(candidate: int) -> int:
            places = numbers + candidate - 1
            inside = (places >= 0) & (places < len(residues))
            return int(np.count_nonzero(residues[places[inside]] == letters[inside]))

        if fitting(given or 0) == len(numbers):
            return given or 0
        candidates = range(1 - int(numbers.max()), len(residues) - int(numbers.min()) + 1)
        best = max(sorted(candidates, key=lambda each: (abs(each), each)), key=fitting)
        most = fitting(best)

        def is_enough(found: int) -> bool:
            may_misfit = max(1, int(_MOST_MISFITS * len(numbers))) if self._leaves_out and found >= _FEW else 0
            return len(numbers) - found <= may_misfit

        offset = best if given is None else given
        if not is_enough(fitting(offset)):
            mend = ", and with no other do more; correct the row, or the wild type"
            if given is not None and most == len(numbers):
                mend = f"; with {best} all of them fit{format_option('data.numbering_offset', best, ': set ')}"
            row, said = next(  # the first one, as rows rise
                (row, said)
                for (number, old), row in expected.items()
                if (said := first_mismatch(old, number, offset, name, wild_type))
            )
            raise ValueError(
                f"{table.name}: {table.row_word} {row}, {columns_in_words(self._columns)}: {said}. The numbers of "
                f"{fitting(offset)} of {len(expected)} mutated residues fit, with the offset {offset}{mend}"
            )
        if given is None and may_be_chance(best, len({number for number, _ in expected}), len(residues)):
            raise ValueError(
                f"{table.name}: its mutations fit {_short(name)} only if their numbers are shifted by {best:+d}, and "
                f"{len(numbers)} mutated residues are too few to be sure"
                f"{format_option('data.numbering_offset', best, '; set ', ' if it is right')}"
            )
        return offset


def may_be_chance(offset: int, positions: int, residues: int) -> bool:
    """Whether one of the offsets up to this one may fit as many positions of an unrelated protein of such a length."""
    return offset != 0 and min(2 * abs(offset) + 1, residues) * _ALIKE**positions > _LIKELY


def columns_in_words(columns: Sequence[str]) -> str:
    """Columns of mutations, for errors."""
    return f"column{'s' * (len(columns) > 1)} {', '.join(map(repr, columns))}"


def first_mismatch(old: str, number: int, offset: int, name: str, wild_type: str) -> str:
    """How a row contradicts its wild type; empty if it does not."""
    place = number + offset - 1
    there = wild_type[place] if 0 <= place < len(wild_type) else ""
    if there and there == (old or there):
        return ""
    counted = f", counted as {place + 1}" if offset else ""
    found = f"{_short(name)} has {there} there" if there else f"{_short(name)} has {len(wild_type)} residues"
    return f"expects {old or 'a residue'} at {number}{counted}, and {found}"


def _short(name: str) -> str:
    """The name of a wild type, or the beginning of its letters where these are its name."""
    return name if len(name) <= 40 else f"{name[:12]}..."
