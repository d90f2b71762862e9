"""Where a table has its proteins: a column of sequences, two chains, or mutations of a wild type.

In: columns, the user's wild type. Out: `ProteinColumns`: settings of `[data]`, and the roles of the columns that
decided. Kept: nothing. A table without any protein ends in one line that says what it needs.
"""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from data.alphabet import STANDARD_RESIDUES
from data.sources.protein import letters_of, rejection
from data.sources.tables import SEQUENCE_COLUMNS
from finetune.look import terms
from finetune.look.column_profile import ColumnProfile
from finetune.look.mutations import MutationColumns, changed, infer_mutations, is_mutant_sequence, of_nucleotides
from finetune.tables.mutations import variants
from finetune.tables.table import Table, truncate_cell
from finetune.tables.wild_types import named_wild_types, read_wild_types, record_named
from zymogen.settings.section import listed

_SAMPLE = 300
"""Distinct texts of a column that are looked at."""
_SHARE, _NEARLY_ALL = 0.8, 0.95
_SHOWN, _SHOWN_COLUMNS = 3, 12
_LEAST_LETTERS, _LEAST_OF_ANY_NAME, _LEAST_NAMED, _LEAST_SHORT = 15, 7, 10, 3
"""Median length from which on letters are taken for a protein: in a column of any name, in one where no other column
is one, in one of a usual name, and in one that is called a sequence or peptide; 'protein' and 'chain' stand above
names, too."""
_FEWEST_PARTNERS, _LEAST_OF_A_PARTNER, _KINDS_OF_PARTNERS = 3, 12, 10
"""Distinct cells of a column of another sequence under any name, their median length, and their distinct letters."""
_KINDS_OF_LETTERS = 8
"""Distinct letters that a column of proteins has at least; labels of residues have fewer."""


_ANOTHER = "another one; --sequence {!r} reads it instead"


@dataclass
class ProteinColumns:
    """How a row becomes a protein."""

    settings: dict[str, Any]
    """Settings of `[data]`."""
    roles: dict[str, tuple[str, str]]
    """Column -> (role, reason)."""
    reasons: dict[str, str] = field(default_factory=dict)
    """Setting -> reason."""
    wild_type: tuple[str, str] | None = None
    """Name and letters of a wild type that must be written beside the recipe, as no file holds it alone."""
    notes: list[str] = field(default_factory=list)


def infer_protein_columns(
    table: Table, columns: Sequence[ColumnProfile], wild_type: str | None, named: Sequence[str]
) -> ProteinColumns:
    """Find the proteins of a table.

    Args:
        table: the table.
        columns: its columns.
        wild_type: FASTA file that the user named.
        named: columns of sequences that the user named.

    Raises:
        ValueError: there is no protein; the message says what is needed.
    """
    for name in named:
        table.require(name, "--sequence")
    sequences = _without_labels([column for column in columns if _is_sequence(column)])
    mutated = infer_mutations(table, [column for column in columns if column not in sequences])
    if not sequences and not mutated:
        sequences = [column for column in columns if _is_sequence(column, any_name=True)]
    said = "A, C, G and T; a protein language model reads its translation"
    nucleotides = [column for column in columns if column not in sequences and _are_nucleotides(column)]
    roles = {column.name: ("nucleotides", said) for column in nucleotides}
    of_dna = [each for each in mutated if of_nucleotides(each)]
    if nucleotides or sequences or len(of_dna) < len(mutated):
        mutated = [each for each in mutated if each not in of_dna]
        roles |= {name: ("note", "mutations of A, C, G and T: of the gene") for each in of_dna for name in each.names}
    partners = [column for column in columns if column not in sequences and _is_partner(column)]
    roles |= {column.name: ("sequence, not read", _ANOTHER.format(column.name)) for column in partners if sequences}
    if named:
        chosen = [column for column in columns if column.name in named]
        return _of_sequences(chosen, sequences, roles, "named by you")
    wild = [column for column in sequences if terms.WILD.search(column.name) and len(column.texts) == 1]
    others = [column for column in sequences if column not in wild]
    if wild_type is not None and mutated:
        return _of_mutations(table, columns, _fitting(table, mutated, wild_type), wild_type, roles)
    if wild_type is not None:
        raise ValueError(f"{table.name}: --wild-type is given, and no column holds mutations such as 'A123T' or 'WT'")
    in_full = is_mutant_sequence(table, others, mutated)
    chosen = [in_full[1]] if in_full else _chosen(others) if others else []
    texts = [column for column in columns if column not in sequences and column.numbers is None and column.texts]
    pieces = [column for column in texts if any(_is_part(column, each, _LEAST_SHORT) for each in chosen)]
    roles |= {column.name: ("sequence, not read", "a part of the one that is read") for column in pieces}
    has_one = len(chosen) == 1 and mutated and not in_full
    found, offset = changed(table, chosen[0], mutated) if has_one else (None, 0)
    if found is not None and len(chosen[0].texts) > 1:
        place = _of_sequences(chosen, sequences, roles, "")
        _add_mutations(place, found)
        place.roles[chosen[0].name] = "wild type", "of each row: it has the residues that the row's mutations replace"
        place.reasons["sequence"] = "the column of each row's wild type"
        place.settings |= {"numbering_offset": offset} if offset else {}
        return place
    if others and found is None:
        place = _of_sequences(chosen, sequences, roles, "")
        for each in (each for each in mutated if len(each.names) == 1):
            place.roles.setdefault(each.names[0], ("mutation", "said by the sequence too, which is read"))
        if in_full:
            place.roles[in_full[0].name] = "wild type", "of each row: it differs from the mutant as the mutations say"
        return place
    wild = chosen if found is not None else wild
    if mutated and wild:
        letters = letters_of(wild[0].texts[0].encode()).upper().decode()
        place = _of_mutations(table, columns, found or mutated[0], None, roles, ("wild_type", letters))
        place.roles[wild[0].name] = "wild type", "one sequence in all rows, which the mutations change"
        return place
    if wild:
        return _of_sequences(wild, sequences, roles, "")
    raise ValueError(_without_protein(table, columns, mutated, roles))


def _of_sequences(
    chosen: Sequence[ColumnProfile], sequences: Sequence[ColumnProfile], roles: dict[str, tuple[str, str]], why: str
) -> ProteinColumns:
    names = [column.name for column in chosen]
    roles |= {
        column.name: ("sequence, not read", _ANOTHER.format(column.name))
        for column in sequences
        if column not in chosen
    }
    for number, column in enumerate(chosen):
        bare = ["".join(text.split()).rstrip("*") for text in column.texts]
        lengths = [*map(len, filter(str.isalpha, bare))] or [*map(len, bare)]
        said = why or f"letters of amino acids, {min(lengths)} to {max(lengths)} in a cell"
        roles[column.name] = ("second chain" if number else "sequence"), said
    settings: dict[str, Any] = {"sequence": names if len(names) > 1 else names[0]}
    reason = "the column whose cells are letters of amino acids"
    if len(names) > 1:
        reason = "two chains of one row; they are joined by a linker of 25 G, which is neither pooled nor labelled"
    return ProteinColumns(settings, roles, {"sequence": reason})


def _of_mutations(
    table: Table,
    columns: Sequence[ColumnProfile],
    mutated: MutationColumns,
    file: str | None,
    roles: dict[str, tuple[str, str]],
    wild_type: tuple[str, str] | None = None,
) -> ProteinColumns:
    """The place where rows are mutations of a wild type, whose numbering is tried out."""
    records = {wild_type[0]: wild_type[1]} if wild_type else read_wild_types(str(file))
    place = ProteinColumns({}, roles)
    _add_mutations(place, mutated)
    if len(records) > 1:
        others = [each for each in columns if each.name not in mutated.names and each.texts]
        naming = (each for each in others if all(record_named(text, records) for text in each.texts[:_SAMPLE]))
        protein = next(naming, None)
        if protein is not None:
            place.settings["protein"] = protein.name
            place.reasons["protein"] = "the column that names the record of the wild type's file that a row changes"
            roles[protein.name] = "protein", "names the record of the wild types' file that the row changes"
        else:
            wild_type = _parent(table, mutated, records, str(file))
            place.reasons["wild_type"] = (
                f"of {file}, the sequence that most of its records have, which all mutations fit"
            )
    place.settings["wild_type"] = file if wild_type is None else None
    place.wild_type = wild_type
    return place


def _fitting(table: Table, mutated: Sequence[MutationColumns], file: str) -> MutationColumns:
    """The first mutations that fit a file of one wild type, such as those of one of two numberings; else the first."""
    records = read_wild_types(file)
    for each in mutated if len(mutated) > 1 and len(records) == 1 else ():
        with suppress(ValueError):
            variants(table, each.names, named_wild_types(table, None, records, file))
            return each
    return mutated[0]


def _add_mutations(place: ProteinColumns, mutated: MutationColumns) -> None:
    """Add the columns of mutations to a place, and what becomes of cells that are none."""
    names, column = mutated.names, mutated.column
    place.settings["mutation"] = list(names) if len(names) > 1 else names[0]
    place.reasons["mutation"] = "the column whose cells are substitutions of the wild type"
    said = f"cells such as {column.texts[0]!r}{', the columns joined' * (len(names) > 1)}"
    place.roles |= dict.fromkeys(names, ("mutation", f"{said}, which change the wild type"))
    unusable = mutated.unreadable
    if unusable or column.num_measured < column.num_rows:
        place.settings["rows_without_protein"] = "leave_out"
        place.reasons["rows_without_protein"] = "rows without a substitution of the wild type have no sequence here"
    if unusable:
        shown = ", ".join(map(repr, list(unusable)[:_SHOWN]))
        place.notes.append(f"rows that are no substitutions are left out: {sum(unusable.values()):,}, such as {shown}")


def _parent(table: Table, mutated: MutationColumns, records: dict[str, str], file: str) -> tuple[str, str]:
    """The record that mutations change, of a file of variants: the most frequent sequence that fits all of them."""
    letters, counts = np.unique(np.array(list(records.values()), object), return_counts=True)
    for at in np.argsort(-counts, kind="stable")[:3].tolist():
        with suppress(ValueError):
            variants(table, mutated.names, named_wild_types(table, None, {"wild_type": letters[at]}, file))
            return "wild_type", str(letters[at])
    raise ValueError(
        f"{file}: holds {len(records):,} proteins, and no column names the one that a row changes; keep the wild type "
        "alone in it"
    )


def _chosen(sequences: Sequence[ColumnProfile]) -> list[ColumnProfile]:
    """The column that is read, or two chains."""
    if len(sequences) > 1:
        names = {column.name.strip().lower(): column for column in sequences}
        for first, second in terms.CHAINS:
            pair = [[name for name in names if word in name.replace("-", "_")] for word in (first, second)]
            if all(len(found) == 1 for found in pair) and pair[0] != pair[1]:
                return [names[pair[0][0]], names[pair[1][0]]]
    usual = [column for column in sequences if column.name.strip().lower() in SEQUENCE_COLUMNS]

    most = max(len(column.texts) for column in sequences)

    def preferred(column: ColumnProfile) -> tuple[bool | float | str, ...]:
        return (
            column in usual[:1],
            terms.WILD.search(column.name) is None,
            not any("-" in text for text in column.texts[:_SAMPLE]),
            not any(_is_part(column, other) for other in sequences),
            2 * len(column.texts) >= most,
            terms.SEQUENCE.search(column.name) is not None,
            float(np.median([len(text) for text in column.texts[:_SAMPLE]])),
            len(column.texts),
            column.name,
        )

    return [max(sequences, key=preferred)]


def _is_part(column: ColumnProfile, other: ColumnProfile, least: int = 1) -> bool:
    """Whether residues of a column, such as a CDR, stand in longer ones of another column in nearly all rows.

    Args:
        column: the one that may be a part.
        other: the longer one.
        least: letters that each cell of the part has at least.
    """
    cells, rows = other.cells, column.cells.rows[:_SAMPLE]
    others = dict(zip(cells.rows.tolist(), (cells.texts[at] for at in cells.which.tolist()), strict=True))
    texts = [column.cells.texts[at] for at in column.cells.which[:_SAMPLE].tolist()]
    pairs = [(text, others[row]) for row, text in zip(rows.tolist(), texts, strict=True) if row in others]
    inside = sum(least <= len(text) < len(whole) and text in whole for text, whole in pairs)
    return inside > _NEARLY_ALL * len(rows)


def _is_sequence(column: ColumnProfile, *, any_name: bool = False) -> bool:
    """Whether most cells are letters of amino acids; under any name, also distinct peptides."""
    texts = [text for text in column.texts[:_SAMPLE] if text]
    if not texts or column.numbers is not None or _are_nucleotides(column):
        return False
    named = terms.SEQUENCE.search(column.name) is not None
    of_one_case = [text for text in texts if text.isupper() or text.islower() or (named and not text.istitle())]
    proteins = [_letters(text) for text in of_one_case if _refused(text) is None]
    if len(proteins) < _SHARE * len(texts):
        return False
    lengths, kinds = [*map(len, proteins)], set[int]().union(*proteins)
    least = _LEAST_NAMED if named else _LEAST_LETTERS
    if terms.SHORT_SEQUENCE.search(column.name) and len(texts) > 1:
        least = _LEAST_SHORT
    if any_name and all(map(str.isupper, texts)) and 2 * len(column.texts) > column.num_measured:
        least = _LEAST_OF_ANY_NAME
    enough_kinds = len(kinds) >= min(_KINDS_OF_LETTERS, max(3, sum(lengths) // 4))
    return bool(np.median(lengths) >= least and enough_kinds)


def _is_partner(column: ColumnProfile) -> bool:
    """Whether all cells are amino acids, longer than words of classes such as INACTIVE, however often each is there."""
    texts = column.texts[:_SAMPLE]
    kinds = {*"".join(texts)}
    if len(texts) < _FEWEST_PARTNERS or len(kinds) < _KINDS_OF_PARTNERS or not kinds <= {*STANDARD_RESIDUES}:
        return False
    return bool(np.median([*map(len, texts)]) >= _LEAST_OF_A_PARTNER)


def _without_labels(sequences: Sequence[ColumnProfile]) -> list[ColumnProfile]:
    """Columns of proteins without those of labels: as long as a protein row by row, and of half as many letters."""
    lengths = {
        column.name: column.cells.over_rows(np.array([*map(len, column.texts)], np.int64), column.num_rows, 0)
        for column in sequences
    }
    letters = {column.name: len(set("".join(column.texts[:_SAMPLE]).upper())) for column in sequences}
    return [
        column
        for column in sequences
        if not any(
            letters[other.name] >= 2 * letters[column.name] and _are_equal(lengths[other.name], lengths[column.name])
            for other in sequences
        )
    ]


def _are_equal(lengths: NDArray[np.int64], others: NDArray[np.int64]) -> bool:
    """Whether nearly all lengths are equal where both are known, which is in most rows."""
    both = (lengths > 0) & (others > 0)
    return bool(both.mean() > 0.5 and (lengths[both] == others[both]).mean() > _NEARLY_ALL)


def _are_nucleotides(column: ColumnProfile) -> bool:
    """Whether nearly all letters of a column are nucleotides."""
    texts = [text.upper() for text in column.texts[:_SAMPLE]]
    if not texts or column.numbers is not None:
        return False
    joined = "".join(texts)
    share = sum(map(joined.count, "ACGTU")) / max(len(joined), 1)
    return share > 0.97 and bool(np.median([len(text) for text in texts]) >= _LEAST_LETTERS)


def _without_protein(
    table: Table,
    columns: Sequence[ColumnProfile],
    mutated: Sequence[MutationColumns],
    roles: dict[str, tuple[str, str]],
) -> str:
    if mutated:
        column = mutated[0].column
        return (
            f"{table.name}: column {column.name!r} holds mutations such as {column.texts[0]!r}, and nothing "
            "says of which protein; name a FASTA file of it with --wild-type; of several proteins, with the names of a "
            "column as ids"
        )
    if roles:
        name = next(iter(roles))
        return (
            f"{table.name}: has nucleotides in column {name!r} and no protein; translate them into a column "
            "'sequence' first"
        )
    for column in (each for each in columns if each.name.strip().lower() in SEQUENCE_COLUMNS):
        letters = [(at, text) for at, text in enumerate(column.texts) if len(text) >= _LEAST_LETTERS and text.isupper()]
        refused = [(at, why) for at, text in letters if (why := _refused(text)) is not None]
        if refused:
            row = table.row(column.cells.first_row(refused[0][0]))
            more = f"; so are {len(refused) - 1} more texts" if len(refused) > 1 else ""
            return f"{row}, column {column.name!r}: no protein, as it {refused[0][1]}{more}"
    texts = [truncate_cell(column.name) for column in columns if column.texts and column.numbers is None]
    named = f"; name a column with --sequence if it is one: {listed(texts, _SHOWN_COLUMNS)}" if texts else ""
    return (
        f"{table.name}: has no protein: it needs a column of sequences, or one of mutations such as 'A123T' and "
        f"--wild-type FILE{named}"
    )


def _letters(text: str) -> bytes:
    return letters_of(text.encode("ascii", "replace")).upper()


def _refused(text: str) -> str | None:
    """Why a text is no protein."""
    found = rejection(b"x", _letters(text), "refuse")
    return found.reason if found is not None else None
