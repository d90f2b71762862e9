"""Mutations instead of sequences: ``A123T``, ``A1P:D2N``, ``p.Ala123Thr``, ``WT``, and the protein that they change.

In: a column of mutations, wild types. Out: the sequence of each row, and which residues differ. Kept: nothing.

Authors count residues from the start codon, from the mature protein or from a construct's first residue. The offset
between their numbers and the wild type's residues is found: the smallest with which every letter fits.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from data.homology.record_names import names
from data.recipe.setting import no_such_word
from data.recipe.settings import IngestSettings
from data.sources.protein import letters_of, refusal
from finetune.tables.fasta import fasta_records
from finetune.tables.location import Location
from finetune.tables.table import Table
from finetune.tables.text import decoded

_LETTERS = "ARNDCQEGHILKMFPSTWYVUO"
_THREE = "ALAARGASNASPCYSGLNGLUGLYHISILELEULYSMETPHEPROSERTHRTRPTYRVALSECPYL"
_CODES = {_THREE[3 * at : 3 * at + 3]: letter for at, letter in enumerate(_LETTERS)}
_WILD_TYPE = ("wt", "wild-type", "wild type", "wildtype", "_wt", "(=)", "=", "p.(=)", "p.=", "none")
_SEPARATORS = re.compile(r"[:;,/+&|\s]+")
_ONE_LETTER = re.compile(r"(?P<old>[A-Z])(?P<number>-?\d+)(?P<new>[A-Z]|=)", re.I)
_THREE_LETTERS = re.compile(r"(?P<old>[A-Z]{3})(?P<number>-?\d+)(?P<new>[A-Z]{3}|=)", re.I)
_OTHER = {
    "deletion": re.compile(r"del|Δ|\d-$", re.I),
    "insertion": re.compile(r"ins", re.I),
    "duplication": re.compile(r"dup", re.I),
    "frameshift": re.compile(r"fs", re.I),
    "extension": re.compile(r"ext", re.I),
    "stop": re.compile(r"\*|ter\b|\d(?:ter|stop)$|\d[X]$", re.I),
}
_FEW = 3
"""Positions below which an offset other than 0 could be there by chance."""


class NoSubstitution(ValueError):
    """A mutation that no substitution describes, such as a deletion."""


class Asked(NamedTuple):
    """What errors call the settings that a user can change; without anything else those of a recipe."""

    mutation: str = "data.mutation"
    protein: str = "data.protein"
    offset: str = "data.numbering_offset = {}"
    """With a place for the number."""
    empty: str = "data.empty_mutation = 'wild_type' reads the wild type"
    """What to do about an empty cell."""


RECIPE = Asked()


@dataclass(frozen=True, slots=True)
class Substitution:
    """One residue instead of another."""

    old: str
    number: int
    """The number that the authors give it."""
    new: str


@dataclass(frozen=True, slots=True)
class Variants:
    """The sequence of each row of a table of mutations."""

    sequences: tuple[str | None, ...]
    """(rows,) None for a row that has none: empty, or no substitution."""
    mutated: tuple[tuple[int, ...], ...]
    """(rows,) residues, from 0, in which the row differs from its wild type."""
    wild_types: tuple[str, ...]
    """(rows,) name of the record that the row changes."""
    unusable: Mapping[int, str]
    """Row -> why it has no sequence."""
    said: tuple[str, ...]


def read_wild_types(location: str, limits: IngestSettings) -> dict[str, str]:
    """Name -> letters of the proteins of a FASTA file.

    Raises:
        ValueError: it does not exist, is no FASTA, or a record is no protein.
    """
    text, _ = decoded(Location.of(location).read(limits), location)
    found: dict[str, str] = {}
    for header, letters in fasta_records(location, text):
        cleaned = letters_of(letters.encode("utf-8", "replace")).upper()
        if refused := refusal(header.encode(), cleaned, "refuse", limits):
            raise ValueError(f"{location}: {header.split()[0]!r} {refused.reason}")
        found[header.split()[0]] = cleaned.decode()
    return found


def record_named(name: str, wild_types: Mapping[str, str]) -> str | None:
    """The id of the record that a table calls `name`: its id, or the accession in it; None if there is no such one."""
    if name in wild_types:
        return name
    by_accession = [each for each in wild_types if name.encode() in names(each.encode())]
    return by_accession[0] if len(by_accession) == 1 else None


def substitutions(text: str) -> tuple[Substitution, ...]:
    """The substitutions of one cell; none for the wild type.

    Raises:
        NoSubstitution: a deletion, an insertion, a stop or another change that replaces no residue by another.
        ValueError: the text is no mutation.
    """
    bare = re.sub(r"^p\.", "", text.strip())
    if text.strip().lower() in _WILD_TYPE or bare.lower() in _WILD_TYPE:
        return ()
    bare = re.sub(r"[\[\]()]", "", bare)
    return tuple(_substitution(part) for part in _SEPARATORS.split(bare) if part)


def _substitution(part: str) -> Substitution:
    part = re.sub(r"^p\.", "", part)
    if found := _ONE_LETTER.fullmatch(part):
        old, new = found["old"].upper(), found["new"].upper()
    elif found := _THREE_LETTERS.fullmatch(part):
        old, new = (
            found[side] if found[side] == "=" else _CODES.get(found[side].upper(), "?") for side in ("old", "new")
        )
    else:
        old = new = "?"
    new = old if new == "=" else new
    if found and old in _LETTERS and new in _LETTERS:
        return Substitution(old, int(found["number"]), new)
    for kind, pattern in _OTHER.items():
        if pattern.search(part):
            raise NoSubstitution(
                f"{part!r} is a{'n' * (kind[0] in 'aei')} {kind}; only substitutions such as 'A123T' are read: give "
                "the whole sequence of such a row in a table with a column of sequences"
            )
    raise ValueError(f"{part!r} is no mutation; write substitutions as 'A123T', 'A1P:D2N' or 'p.Ala123Thr', or 'WT'")


def variants(
    table: Table,
    mutation: str,
    wild_types: Mapping[str, str],
    *,
    protein: str | None = None,
    empty_is_wild_type: bool = False,
    offset: int | None = None,
    wild_type_file: str = "wild_type",
    numbering: "Numbering | None" = None,
    asked_by: Asked = RECIPE,
) -> Variants:
    """The sequence of each row.

    Args:
        table: the table.
        mutation: column of mutations.
        wild_types: name -> letters.
        protein: column that names the wild type; without it there must be one wild type.
        empty_is_wild_type: whether an empty cell is the wild type; otherwise the row has no sequence.
        offset: what is added to a number to count residues from 1; without it, it is found for each wild type.
        wild_type_file: for errors.
        numbering: of the whole table, where this one is a part of it; without it, it is that of this one.
        asked_by: what errors call these arguments.

    Raises:
        ValueError: a cell is no mutation; a wild type has another residue than a row says; a row names no record; no
            offset fits, or it rests on too few positions.
    """
    proteins = wild_types_of_rows(table, protein, wild_types, wild_type_file, asked_by)
    parsed, unusable = _parsed(table, mutation, empty_is_wild_type, asked_by)
    said: list[str] = []
    if numbering is None:
        numbering = Numbering(wild_types, offset, asked_by)
        numbering.count(table, mutation, proteins, parsed)
        said += numbering.settle(table)
    offsets = numbering.offsets
    sequences: list[str | None] = []
    mutated: list[tuple[int, ...]] = []
    for index, (name, changes) in enumerate(zip(proteins, parsed, strict=True)):
        if changes is None:
            sequences.append(None)
            mutated.append(())
            continue
        letters = list(wild_types[name])
        places = [change.number + offsets[name] - 1 for change in changes]
        if len(set(places)) < len(places):
            twice = next(change for at, change in enumerate(changes) if places[at] in places[:at])
            raise ValueError(f"{table.row(index)}, column {mutation!r}: changes residue {twice.number} twice")
        for place, change in zip(places, changes, strict=True):
            letters[place] = change.new
        sequences.append("".join(letters))
        mutated.append(tuple(sorted(p for p, change in zip(places, changes, strict=True) if change.new != change.old)))
    return Variants(tuple(sequences), tuple(mutated), tuple(proteins), unusable, tuple(said))


def numbering_of(
    parts: Iterable[Table],
    mutation: str,
    wild_types: Mapping[str, str],
    *,
    protein: str | None = None,
    offset: int | None = None,
    wild_type_file: str = "wild_type",
) -> tuple["Numbering", list[str]]:
    """How a table that is given in parts numbers residues, and what is said of it; the arguments of `variants`.

    Raises:
        ValueError: as for `variants`.
    """
    numbering = Numbering(wild_types, offset)
    for part in parts:
        part.require(mutation, "data.mutation")
        proteins = wild_types_of_rows(part, protein, wild_types, wild_type_file)
        numbering.count(part, mutation, proteins, _parsed(part, mutation, empty_is_wild_type=True)[0])
    return numbering, numbering.settle(part)


def _parsed(
    table: Table, mutation: str, empty_is_wild_type: bool, asked_by: Asked = RECIPE
) -> tuple[list[tuple[Substitution, ...] | None], dict[int, str]]:
    """The substitutions of each row, and why a row has none."""
    parsed: list[tuple[Substitution, ...] | None] = []
    unusable: dict[int, str] = {}
    for index, text in enumerate(table.column(mutation)):
        found: tuple[Substitution, ...] | None = None
        if (text is None or not text.strip()) and not empty_is_wild_type:
            unusable[index] = f"its column {mutation!r} is empty ({asked_by.empty})"
        else:
            try:
                found = substitutions(text or "WT")
            except NoSubstitution as error:
                unusable[index] = f"in its column {mutation!r}, {error}"
            except ValueError as error:
                raise ValueError(f"{table.row(index)}, column {mutation!r}: {error}") from None
        parsed.append(found)
    return parsed, unusable


def wild_types_of_rows(
    table: Table, protein: str | None, wild_types: Mapping[str, str], file: str, asked_by: Asked = RECIPE
) -> list[str]:
    """Name of the wild type of each row."""
    if protein is None:
        if len(wild_types) != 1:
            raise ValueError(
                f"{file}: holds {len(wild_types)} proteins ({', '.join(list(wild_types)[:5])}); name the column that "
                f"says which of them a row changes with {asked_by.protein}, or keep one record"
            )
        return list(wild_types) * table.num_rows
    table.require(protein, asked_by.protein)
    found = []
    for index, text in enumerate(table.column(protein)):
        name = record_named((text or "").strip(), wild_types)
        if name is None:
            raise ValueError(f"{table.row(index)}: {no_such_word(protein, text, list(wild_types)[:50])} (of {file})")
        found.append(name)
    return found


class Numbering:
    """What is added to the numbers of mutations to count residues of each wild type from 1.

    Args:
        wild_types: name -> letters.
        given: what is added, if the user says so.
        asked_by: what errors call the settings.
    """

    def __init__(self, wild_types: Mapping[str, str], given: int | None = None, asked_by: Asked = RECIPE) -> None:
        self.offsets: dict[str, int] = {}
        """Wild type -> what is added, once it is settled."""
        self._wild_types, self._given, self._asked_by = wild_types, given, asked_by
        self._expected: dict[str, dict[int, tuple[str, str]]] = {}
        """Wild type -> number -> residue, and the row that says so first, as a user counts."""
        self._column = ""

    def count(
        self, table: Table, mutation: str, proteins: Sequence[str], parsed: Sequence[tuple[Substitution, ...] | None]
    ) -> None:
        """Take the residues that the rows of a table, or of a part of it, expect.

        Raises:
            ValueError: two rows expect two residues at one place.
        """
        self._column = mutation
        for index, (name, changes) in enumerate(zip(proteins, parsed, strict=True)):
            expected = self._expected.setdefault(name, {})
            for change in changes or ():
                old, first = expected.setdefault(change.number, (change.old, table.shown(index)))
                if old != change.old:
                    raise ValueError(
                        f"{table.row(index)}, column {mutation!r}: residue {change.number} is {change.old} here, and "
                        f"{old} in {table.row_word} {first}; one of the two is wrong"
                    )

    def settle(self, table: Table) -> list[str]:
        """Find what is added, and say it where it was not given and is not 0.

        Args:
            table: for errors.

        Raises:
            ValueError: none fits, or it rests on too few positions.
        """
        for name, expected in self._expected.items():
            letters = self._wild_types[name]
            self.offsets[name] = _offset(table, self._column, expected, name, letters, self._given, self._asked_by)
        return [
            f"the numbers of its mutations are those of {name} {-offset:+d}: residue 1 of the wild type is number "
            f"{1 - offset}"
            for name, offset in self.offsets.items()
            if offset and self._given is None
        ]


def _offset(
    table: Table,
    mutation: str,
    expected: Mapping[int, tuple[str, str]],
    name: str,
    wild_type: str,
    given: int | None,
    asked_by: Asked,
) -> int:
    """What is added to these numbers to count residues of the wild type from 1."""
    if not expected:
        return given or 0
    numbers = np.array(sorted(expected))
    letters = np.frombuffer("".join(expected[int(number)][0] for number in numbers).encode(), np.uint8)
    residues = np.frombuffer(wild_type.encode(), np.uint8)

    def fitting(candidate: int) -> int:
        places = numbers + candidate - 1
        inside = (places >= 0) & (places < len(residues))
        return int(np.count_nonzero(residues[places[inside]] == letters[inside]))

    if given is not None and fitting(given) == len(numbers):
        return given
    candidates = range(1 - int(numbers[-1]), len(residues) - int(numbers[0]) + 1)
    best, most = 0, -1
    for candidate in sorted(candidates, key=lambda each: (abs(each), each)):
        if (found := fitting(candidate)) > most:
            best, most = candidate, found
    if given is not None:
        mend = "; correct the row, or the wild type"
        if most == len(numbers):
            mend = f"; with {best} all of them fit: set {asked_by.offset.format(best)}"
        _refuse_residue(table, mutation, expected, name, wild_type, given, fitting(given), mend)
    if most < len(numbers):
        mend = ", and with no other do more; correct the row, or the wild type"
        _refuse_residue(table, mutation, expected, name, wild_type, best, most, mend)
    if best and len(numbers) < _FEW:
        raise ValueError(
            f"{table.name}: its mutations fit {name} only if their numbers are shifted by {best:+d}, and "
            f"{len(numbers)} mutated residues are too few to be sure; set {asked_by.offset.format(best)} if it is right"
        )
    return best


def _refuse_residue(
    table: Table,
    mutation: str,
    expected: Mapping[int, tuple[str, str]],
    name: str,
    wild_type: str,
    offset: int,
    fitting: int,
    mend: str,
) -> None:
    """Raise for the first row whose residue is not that of the wild type, and say what mends it."""
    for number, (old, row) in expected.items():  # by rising row
        place = number + offset - 1
        there = wild_type[place] if 0 <= place < len(wild_type) else ""
        if there == old:
            continue
        counted = f", counted as {place + 1}" if offset else ""
        found = f"{name} has {there} there" if there else f"{name} has {len(wild_type)} residues"
        raise ValueError(
            f"{table.name}: {table.row_word} {row}, column {mutation!r}: expects {old} at {number}{counted}, and "
            f"{found}. The numbers of {fitting} of {len(expected)} mutated residues fit, with the offset {offset}{mend}"
        )
    raise AssertionError("every residue fits")
