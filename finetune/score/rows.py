"""The variants that the rows of a table name, by mutations or by whole sequences.

In: a table, targets by name. Out: a variant for each row, or why it has none. Kept: nothing.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from data.recipe.settings import IngestSettings
from data.sources.protein import is_missing, letters_of, refusal
from finetune.score.schemes import Variant, variant_of
from finetune.tables.mutations import Asked, variants, wild_types_of_rows
from finetune.tables.table import Table

MUTATION, SEQUENCE, TARGET = "mutant", "mutated_sequence", "target"
"""Columns where nothing else is asked for; the first two are ProteinGym's."""
ASKED = Asked("--mutations", "--target-column", "--offset {}", "write WT for the wild type")


@dataclass(frozen=True, slots=True)
class Rows:
    """The variants of a table."""

    target_of: tuple[str, ...]
    """(rows,) name of the target of each."""
    variants: tuple[Variant | None, ...]
    """(rows,) None where `notes` says why."""
    notes: dict[int, str]
    """Row -> why it has no variant."""

    def of_target(self, name: str) -> list[int]:
        """The rows with a variant of one target."""
        pairs = zip(self.target_of, self.variants, strict=True)
        return [row for row, (own, variant) in enumerate(pairs) if own == name and variant is not None]


def read_target(letters: str, asked_by: str) -> str:
    """Letters of a target that was given as text, in upper case.

    Raises:
        ValueError: they are no protein.
    """
    cleaned = letters_of(letters.encode("utf-8", "replace")).upper()
    if refused := refusal(b"target", cleaned, "refuse", IngestSettings()):
        raise ValueError(f"{asked_by} {letters[:30]!r} {refused.reason}")
    return cleaned.decode()


def read_variants(
    table: Table,
    targets: Mapping[str, str],
    *,
    mutation: str | None = None,
    sequence: str | None = None,
    target: str | None = None,
    offset: int = 0,
    targets_file: str = "--targets",
) -> Rows:
    """The variants of a table.

    A row whose mutations are no substitutions is read from the column of sequences, if there is one.

    Args:
        table: the table.
        targets: name -> letters.
        mutation: column of mutations, such as ``A1P:D2N``; None where sequences are given alone.
        sequence: column of whole sequences, of any length.
        target: column that names the target; without it there is one target.
        offset: what is added to the numbers of mutations to count residues of the target from 1.
        targets_file: for errors.

    Raises:
        ValueError: there is neither column; a target has another residue than a row says; a row names no target; a
            sequence is no protein, or not what the mutations of its row make.
    """
    if mutation is None and sequence is None:
        raise ValueError(
            f"{table.name}: has no column {MUTATION!r} of mutations and none {SEQUENCE!r} of sequences, only "
            f"{', '.join(map(repr, table.columns))}; name one with --mutations or --sequences"
        )
    for name, asked_by in ((mutation, "--mutations"), (sequence, "--sequences"), (target, "--target-column")):
        if name is not None:
            table.require(name, asked_by)
    notes: dict[int, str] = {}
    found: list[Variant | None] = [None] * table.num_rows
    if mutation is not None:
        read = variants(
            table, mutation, targets, protein=target, offset=offset, wild_type_file=targets_file, asked_by=ASKED
        )
        names, notes = list(read.wild_types), dict(read.unusable)
        for row, (whole, mutated) in enumerate(zip(read.sequences, read.mutated, strict=True)):
            found[row] = None if whole is None else Variant(whole, mutated)
    else:
        names = wild_types_of_rows(table, target, targets, targets_file, ASKED)
    for row, text in enumerate(table.column(sequence)) if sequence is not None else ():
        letters = letters_of((text or "").encode("utf-8", "replace")).upper()
        if is_missing(letters):
            if found[row] is None:
                notes.setdefault(row, f"its column {sequence!r} {f'says {text!r}' if letters else 'is empty'}")
            continue
        if refused := refusal(b"variant", letters, "refuse", IngestSettings()):
            raise ValueError(f"{table.row(row)}, column {sequence!r}: {refused.reason}")
        own = variant_of(targets[names[row]], letters.decode())
        if (known := found[row]) is not None and known.sequence != own.sequence:
            raise ValueError(
                f"{table.row(row)}: its column {sequence!r} is not what {table.column(mutation or '')[row]!r} makes of "
                f"{names[row]}; correct one of the two, or read one with --mutations or --sequences"
            )
        found[row] = own
        notes.pop(row, None)
    return Rows(tuple(names), tuple(found), notes)
