"""Which columns hold mutations, and whether a column of sequences has the residues before or after them.

In: columns, a column of sequences. Out: `MutationColumns`, and the ones that are to be made in each row's own sequence.
Kept: nothing. What two columns claim of each other is compared in every row, as names cannot tell a wild type from a
mutant.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice, permutations, product

import numpy as np
from numpy.typing import NDArray

from finetune.look import terms
from finetune.look.column_profile import ColumnProfile
from finetune.tables.mutations import are_of_nucleotides, mutation_cells, substitutions_or, variants
from finetune.tables.table import Table
from finetune.tables.wild_types import Substitution, may_be_chance, own_wild_types
from finetune.tasks.cells import written

_SAMPLE = 300
"""Distinct texts of a column that are looked at."""
_SHARE = 0.8
_NEARLY_ALL = 0.9
"""Share of the mutated residues that decide which residues a column of sequences has."""
_MOST_TRIED = 2000
"""Mutated residues by which shifts are tried."""
_RESIDUE = re.compile(r"[ACDEFGHIKLMNPQRSTVWY*-]|[A-Z][a-z]{2}|[A-Z]{3}")
_NUMBER = re.compile(r"-?\d+(?:\.0|[A-Za-z])?")
"""A number, or one with the letter of an inserted residue."""
_POSITION = re.compile(r"pos|site|resi|num|loc|index", re.I)
_NEW = re.compile(r"mut|new|alt|to$|after|variant|subst", re.I)


@dataclass(frozen=True)
class MutationColumns:
    """One column of mutations, or three that make one: wild-type residue, number and residue."""

    names: tuple[str, ...]
    column: ColumnProfile
    """Their cells, joined."""

    @cached_property
    def unreadable(self) -> dict[str, int]:
        """Texts that give a row no sequence, and how many rows have each."""
        counts = self.column.counts.tolist()
        return {text: counts[at] for at, text in enumerate(self.column.texts) if substitutions_or(text, None) is None}


def infer_mutations(table: Table, columns: Sequence[ColumnProfile]) -> list[MutationColumns]:
    """The columns of mutations, the one that is most likely first."""
    found = [MutationColumns((column.name,), column) for column in columns if _is_mutation(column)]
    found.sort(key=lambda each: terms.MUTATION.search(each.names[0]) is None)
    letters = [column for column in columns if column.numbers is None and _all(_RESIDUE, column)]
    numbers = [column for column in columns if _POSITION.search(column.name) and _all(_NUMBER, column)]
    for old, new in permutations(letters, 2):
        if (_NEW.search(new.name) is not None) > (_NEW.search(old.name) is not None):
            found += [_joined(table, (old.name, number.name, new.name)) for number in numbers]
    return found


def of_nucleotides(mutated: MutationColumns) -> bool:
    """Whether a column of mutations is of the gene, and not of its protein."""
    texts = mutated.column.texts[:_SAMPLE]
    return are_of_nucleotides(change for text in texts for change in substitutions_or(text, ()) or ())


def is_mutant_sequence(
    table: Table, sequences: Sequence[ColumnProfile], mutated: Sequence[MutationColumns]
) -> tuple[ColumnProfile, ColumnProfile] | None:
    """Columns of wild types and of mutants that differ in the residues that mutations name, whatever their numbers."""
    for (old, new), each in product(permutations(sequences, 2), mutated):
        rows = zip(table.column(old.name), table.column(new.name), mutation_cells(table, each.names), strict=True)
        some = islice(rows, 0, None, max(1, table.num_rows // _SAMPLE))
        fit = [_differ_as_said(*row) for row in some]
        if sum(fit) > _NEARLY_ALL * len(fit):
            return old, new
    return None


def _differ_as_said(old: str | None, new: str | None, mutation: str | None) -> bool:
    if not (old and new and mutation):
        return False
    changes = substitutions_or(mutation, ()) or ()
    said = sorted((change.old, change.new) for change in changes if change.old != change.new)
    return len(old) == len(new) and said == sorted(
        pair for pair in zip(old.upper(), new.upper(), strict=True) if len({*pair}) > 1
    )


def changed(
    table: Table, sequence: ColumnProfile, mutated: Sequence[MutationColumns]
) -> tuple[MutationColumns | None, int]:
    """The mutations whose old residues a column of sequences has, and the offset of their numbers where one is common.

    None where it has the new residues, so that mutations say nothing more.

    Raises:
        ValueError: it has old residues in some rows and new ones in others; or rows of one sequence have different
            mutations, which it has neither before nor after.
    """
    cells = table.column(sequence.name)
    for each in mutated:
        parsed = [substitutions_or(text or "WT", ()) or () for text in mutation_cells(table, each.names)]
        evidence = _Evidence.of(cells, parsed)
        if not len(evidence.rows):
            continue
        offset = evidence.offset
        is_old, is_new = evidence.at(offset)
        if is_old.mean() >= _NEARLY_ALL:
            return each, offset
        if is_new.mean() >= _NEARLY_ALL:
            return None, 0
        if _fit_one_by_one(table, sequence, each):
            return each, 0
        if (is_old | is_new).mean() >= _NEARLY_ALL:
            old, new = (table.shown(int(evidence.rows[np.argmax(found)])) for found in (is_old, is_new))
            raise ValueError(
                f"{table.name}: column {sequence.name!r} mixes wild types and mutants: in {table.row_word} {old} it "
                f"has the residue before the mutation of {each.column.name!r}, in {table.row_word} {new} the one after "
                "it; write the wild type, or the mutant, into every row"
            )
        of_sequence: dict[str | None, set[tuple[Substitution, ...]]] = {}
        for cell, changes in zip(cells, parsed, strict=True):
            of_sequence.setdefault(cell, set()).add(changes)
        if len(each.names) == 1 and any(len(different) > 1 for different in of_sequence.values()):
            row = table.shown(int(evidence.rows[np.argmin(is_old | is_new)]))
            raise ValueError(
                f"{table.name}: column {sequence.name!r} does not fit the mutations of {each.column.name!r}: in "
                f"{table.row_word} {row} it has neither the residue before nor the one after; correct one of the two, "
                f"name the wild type's file with --wild-type, or read the sequences alone: --sequence {sequence.name!r}"
            )
    return None, 0


@dataclass(frozen=True)
class _Evidence:
    """The mutated residues of all rows, beside their sequences."""

    rows: NDArray[np.int64]
    numbers: NDArray[np.int64]
    old: NDArray[np.uint8]
    new: NDArray[np.uint8]
    letters: NDArray[np.uint8]
    """Distinct sequences, one after another."""
    starts: NDArray[np.int64]
    """First letter of each residue's sequence."""
    lengths: NDArray[np.int64]

    @classmethod
    def of(cls, cells: Sequence[str | None], parsed: Sequence[Sequence[Substitution]]) -> "_Evidence":
        texts = {cell: "".join((cell or "").split()).upper() for cell in dict.fromkeys(cells)}
        ends = np.cumsum([len(text) for text in texts.values()])
        spans = {cell: (int(end) - len(text), len(text)) for (cell, text), end in zip(texts.items(), ends, strict=True)}
        found = [
            (row, change.number, ord(change.old), ord(change.new), *spans[cell])
            for row, (cell, changes) in enumerate(zip(cells, parsed, strict=True))
            for change in changes
            if change.old and change.old != change.new and spans[cell][1]
        ]
        columns = np.array(found, np.int64).reshape(-1, 6).T
        letters = np.frombuffer("".join(texts.values()).encode("latin-1", "replace"), np.uint8)
        rows, numbers, old, new, starts, lengths = columns
        return cls(rows, numbers, old.astype(np.uint8), new.astype(np.uint8), letters, starts, lengths)

    def at(self, offset: int, some: slice = slice(None)) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
        """(residues,) whether the sequence has the old one, and the new one, where numbers are shifted."""
        places, lengths = self.numbers[some] + offset - 1, self.lengths[some]
        inside = (places >= 0) & (places < lengths)
        there = np.where(inside, self.letters[self.starts[some] + np.clip(places, 0, lengths - 1)], 0)
        return there == self.old[some], there == self.new[some]

    @cached_property
    def offset(self) -> int:
        """The shift with which most residues are the old ones, or the new ones; 0 where it is as good as any."""
        some = slice(None, None, max(1, len(self.rows) // _MOST_TRIED))
        tried = range(1 - int(self.numbers.max()), int(self.lengths.max()) - int(self.numbers.min()) + 1)
        shifts = [0, *sorted(tried, key=abs)]
        best = max(shifts, key=lambda shift: max(float(found.mean()) for found in self.at(shift, some)))
        places = np.unique(self.starts + self.numbers)
        return 0 if may_be_chance(best, len(places), int(self.lengths.max())) else best


def _fit_one_by_one(table: Table, sequence: ColumnProfile, mutated: MutationColumns) -> bool:
    """Whether each sequence has the old residues under a numbering of its own."""
    wild_types = own_wild_types(table, sequence.name)
    try:
        found = variants(table, mutated.names, wild_types, leaves_out=True)
    except ValueError:
        return False
    return sum(each is not None for each in found.sequences) >= _NEARLY_ALL * sequence.num_measured


def _joined(table: Table, names: tuple[str, ...]) -> MutationColumns:
    import pyarrow as pa

    cells = pa.table({"joined": pa.array(mutation_cells(table, names), pa.string())})
    return MutationColumns(
        names, ColumnProfile(" ".join(names), table.num_rows, written(Table(table.name, cells, 2), "joined"))
    )


def _all(pattern: re.Pattern[str], column: ColumnProfile) -> bool:
    """Whether every text of a column fits a pattern, of which there is more than one."""
    return len(column.texts) > 1 and all(pattern.fullmatch(text) for text in column.texts)


def _is_mutation(column: ColumnProfile) -> bool:
    """Whether most cells are mutations."""
    texts = column.texts[:_SAMPLE]
    if not texts or column.numbers is not None:
        return False
    read = [substitutions_or(text, ()) for text in texts]
    is_named = terms.MUTATION.search(column.name) is not None
    num_old = sum(found is not None and any(change.old for change in found) for found in read)
    changes = any(read) if is_named else num_old >= len(texts) / 2
    return changes and sum(found is not None for found in read) >= _SHARE * len(texts)
