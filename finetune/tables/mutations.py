"""Mutations instead of sequences: ``A123T``, ``A1P_D2N``, ``p.Ala123Thr``, ``3F``, ``WT``, and what they change.

In: columns of mutations, wild types. Out: the sequence of each row, and which residues differ. Kept: nothing.

A cell is the wild type (``WT``, ``=``, ``_sy``), substitutions, or it gives its row no sequence, for a reason: it is
blank or says ``NA``, it is no mutation, or none of substitutions. Who reads the rows refuses these or leaves them out.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from data.sources.protein import is_missing
from finetune.tables.settings import TableSettings
from finetune.tables.table import Table
from finetune.tables.wild_types import (
    ResidueNumbering,
    Substitution,
    WildTypes,
    columns_in_words,
    first_mismatch,
    wild_types_of,
)
from zymogen.settings.origin import format_option

_LETTERS = "ARNDCQEGHILKMFPSTWYVUO"
_THREE = "ALAARGASNASPCYSGLNGLUGLYHISILELEULYSMETPHEPROSERTHRTRPTYRVALSECPYL"
_CODES = {_THREE[3 * at : 3 * at + 3]: letter for at, letter in enumerate(_LETTERS)}
_WILD_TYPE = ("wt", "wild-type", "wild type", "wildtype", "_wt", "_sy", "(=)", "=", "p.(=)", "p.=", "none")
_SEPARATORS = re.compile(r"[:;,/+&|\s]+|(?<=[A-Za-z=])(?:[_-](?=[A-Za-z]{1,3}-?\d)|_(?=\d+[A-Za-z]))")
_SUBSTITUTION = re.compile(r"(?P<old>[A-Z]|[A-Z]{3})?(?P<number>-?\d+)(?P<new>[A-Z]|[A-Z]{3}|=)", re.I)
_UNCHANGED = re.compile(r"[A-Z]{1,3}\d+_[A-Z]{1,3}\d+=", re.I)
_NO_CHANGE = re.compile(r"[A-Z]{1,3}-?\d+", re.I)
_LEAST_OF_NUCLEOTIDES = 10
_OTHER = {
    "deletion": re.compile(r"del|Δ|\d-$", re.I),
    "insertion": re.compile(r"ins", re.I),
    "duplication": re.compile(r"dup", re.I),
    "frameshift": re.compile(r"fs", re.I),
    "extension": re.compile(r"ext", re.I),
    "stop": re.compile(r"\*|ter\b|\d(?:ter|stop)$|\d[X]$", re.I),
    "change of unknown effect": re.compile(r"\?$|^0$"),
}


class NotASubstitutionError(ValueError):
    """A mutation that no substitution describes, such as a deletion."""


@dataclass(frozen=True, slots=True)
class VariantSequences:
    """The sequence of each row of a table of mutations."""

    sequences: tuple[str | None, ...]
    """(rows,) None for a row that has none."""
    mutated: tuple[tuple[int, ...], ...]
    """(rows,) residues, from 0, in which the row differs from its wild type."""
    unusable: Mapping[int, str]
    """Row -> why it has no sequence."""
    said: tuple[str, ...]


def substitutions(text: str) -> tuple[Substitution, ...]:
    """The substitutions of one cell; none for the wild type.

    Raises:
        NotASubstitutionError: a deletion, an insertion, a stop or another change that replaces no residue by another.
        ValueError: the text is no mutation.
    """
    bare = re.sub(r"^p\.", "", text.strip())
    if text.strip().lower() in _WILD_TYPE or bare.lower() in _WILD_TYPE:
        return ()
    bare = re.sub(r"[\[\]()]", "", bare)
    return tuple(found for part in _SEPARATORS.split(bare) if part for found in _substitution(part))


def substitutions_or(text: str, otherwise: tuple[Substitution, ...] | None) -> tuple[Substitution, ...] | None:
    """The substitutions of one cell; `otherwise` for another change, None for a text that is no mutation."""
    try:
        return substitutions(text)
    except NotASubstitutionError:
        return otherwise
    except ValueError:
        return None


def are_of_nucleotides(changes: Iterable[Substitution]) -> bool:
    """Whether substitutions are of A, C, G and T alone, in both directions, and enough that this is no chance."""
    letters = [change.old + change.new for change in changes]
    return len(letters) >= _LEAST_OF_NUCLEOTIDES and all(re.fullmatch("[ACGT]{2}", each) for each in letters)


def _substitution(part: str) -> tuple[Substitution, ...]:
    """The substitution that a part of a cell is; none where it names residues that stay as they are."""
    part = re.sub(r"^p\.", "", part)
    if _UNCHANGED.fullmatch(part):
        return ()
    if found := _SUBSTITUTION.fullmatch(part):
        old, new = (_CODES.get(side.upper(), side.upper()) for side in (found["old"] or "", found["new"]))
        new = old if new == "=" else new
        if new and {old, new} <= {"", *_LETTERS}:
            return (Substitution(old, int(found["number"]), new),)
    for kind, pattern in _OTHER.items():
        if pattern.search(part):
            raise NotASubstitutionError(
                f"{part!r} is a{'n' * (kind[0] in 'aei')} {kind}; only substitutions such as 'A123T' are read: give "
                "the whole sequence of such a row in a table with a column of sequences"
            )
    if _NO_CHANGE.fullmatch(part):
        raise NotASubstitutionError(
            f"{part!r} names one residue, which may be the old or the new one; write both, as in 'A123T'"
        )
    raise ValueError(
        f"{part[:60]!r} is no mutation; write substitutions as 'A123T', 'A1P:D2N' or 'p.Ala123Thr', or 'WT'"
    )


def variants(
    table: Table,
    columns: Sequence[str],
    wild_types: WildTypes,
    *,
    empty_is_wild_type: bool = False,
    offset: int | None = None,
    leaves_out: bool = False,
    numbering: ResidueNumbering | None = None,
) -> VariantSequences:
    """The sequence of each row.

    Args:
        table: the table.
        columns: of mutations; the cells of several are joined in their order, as in ``A``, ``123``, ``T``.
        wild_types: of the rows.
        empty_is_wild_type: whether an empty cell is the wild type; otherwise the row has no sequence.
        offset: what is added to a number to count residues from 1; without it, it is found for each wild type.
        leaves_out: whether single rows that contradict their wild type have no sequence; otherwise they are refused.
        numbering: of the whole table, where this one is a part of it; without it, it is that of this one.

    Raises:
        ValueError: a wild type has another residue than a row says; no offset fits, or it rests on too few positions.
    """
    parsed, unusable = _parsed(table, columns, empty_is_wild_type)
    unusable |= wild_types.unusable
    said: list[str] = []
    if numbering is None:
        numbering = ResidueNumbering(offset, leaves_out=leaves_out)
        numbering.count(table, columns, wild_types, parsed)
        said += numbering.infer(table)
    sequences: list[str | None] = [None] * table.num_rows
    mutated: list[tuple[int, ...]] = [()] * table.num_rows
    for index, (name, changes) in enumerate(zip(wild_types.of_rows, parsed, strict=True)):
        if index in unusable or changes is None:
            continue
        if name in numbering.unsure:
            unusable[index] = numbering.unsure[name]
            continue
        letters, offset_of = list(wild_types.letters[name]), numbering.offsets[name]
        places = [change.number + offset_of - 1 for change in changes]
        if len(set(places)) < len(places):
            twice = next(change for at, change in enumerate(changes) if places[at] in places[:at])
            unusable[index] = f"in its {columns_in_words(columns)}, residue {twice.number} is changed twice"
            continue
        differ = []
        for place, change in zip(places, changes, strict=True):
            if wrong := first_mismatch(change.old, change.number, offset_of, name, wild_types.letters[name]):
                unusable[index] = f"in its {columns_in_words(columns)}, it {wrong}"
                break
            differ += [place] * (letters[place] != change.new)
            letters[place] = change.new
        else:
            sequences[index], mutated[index] = "".join(letters), tuple(sorted(differ))
    return VariantSequences(tuple(sequences), tuple(mutated), unusable, tuple(said))


def numbering_of(parts: Iterable[Table], settings: TableSettings) -> tuple[ResidueNumbering, list[str]]:
    """How a table that is given in parts numbers residues, and what is said of it.

    Raises:
        ValueError: as for `variants`.
    """
    numbering = ResidueNumbering(settings.numbering_offset, leaves_out=settings.rows_without_protein == "leave_out")
    for part in parts:
        parsed, _ = _parsed(part, settings.mutation, empty_is_wild_type=True)
        numbering.count(part, settings.mutation, wild_types_of(part, settings), parsed)
    return numbering, numbering.infer(part)


def _parsed(
    table: Table, columns: Sequence[str], empty_is_wild_type: bool
) -> tuple[list[tuple[Substitution, ...] | None], dict[int, str]]:
    """The substitutions of each row, and why a row has none."""
    parsed: list[tuple[Substitution, ...] | None] = []
    unusable: dict[int, str] = {}
    known: dict[str, tuple[Substitution, ...]] = {}
    where = columns_in_words(columns)
    for index, text in enumerate(mutation_cells(table, columns)):
        found: tuple[Substitution, ...] | None = None
        if text is None and not empty_is_wild_type:
            way = format_option("data.empty_mutation", "wild_type", after=" reads the wild type")
            unusable[index] = f"its {where} is empty ({way or 'write WT for the wild type'})"
        else:
            try:
                found = known[text or "WT"] = known.get(text or "WT") or substitutions(text or "WT")
            except ValueError as error:
                says_missing = is_missing((text or "").encode())
                unusable[index] = f"its {where} says {text!r}" if says_missing else f"in its {where}, {error}"
        parsed.append(found)
    return parsed, unusable


def mutation_cells(table: Table, columns: Sequence[str]) -> list[str | None]:
    """The mutations of each row as one text; None where a cell is blank.

    Raises:
        ValueError: a column is not there.
    """
    for name in columns:
        table.require(name, format_option("data.mutation") or "column")
    rows = zip(*(table.column(name) for name in columns), strict=True)
    trimmed = ([(cell or "").strip() for cell in cells] for cells in rows)
    if len(columns) > 1:  # pandas writes whole numbers as 12.0 where a cell of the column is blank
        trimmed = ([cell.removesuffix(".0") for cell in cells] for cells in trimmed)
    return ["".join(cells) if all(cells) else None for cells in trimmed]
