"""The variants that the rows of a table name, by mutations or by whole sequences.

In: a table, targets by name. Out: a variant for each row, or why it has none. Kept: nothing.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from data.sources.protein import is_missing, letters_of, rejection
from finetune.score.plan import MARGINALS, Scheme, Variant, variant_of
from finetune.tables.mutations import mutation_cells, variants
from finetune.tables.table import Table
from finetune.tables.wild_types import WildTypes

MUTATION, SEQUENCE, TARGET = "mutant", "mutated_sequence", "target"
"""Columns where nothing else is asked for, in upper or lower case; the first two are ProteinGym's."""
MUTATIONS = (MUTATION, "mutations", "mutation", "variant")
"""Usual names of a column of mutations, from the first that a table has."""
TARGETS = ("wild_type", "wildtype", "wild_type_sequence", "wt_sequence", "wt_seq", "target_seq", "target_sequence")
"""Usual names of a column of wild types; one of single residues is none."""


@dataclass(frozen=True, slots=True)
class VariantTable:
    """The variants of a table."""

    target_of: tuple[str, ...]
    """(rows,) name of the target of each."""
    variants: tuple[Variant | None, ...]
    """(rows,) None where `notes` says why."""
    notes: dict[int, str]
    """Row -> why it has no variant."""


def read_target(letters: str, asked_by: str) -> str:
    """Letters of a target that was given as text, in upper case.

    Raises:
        ValueError: they are no protein.
    """
    cleaned = letters_of(letters.encode("utf-8", "replace")).upper()
    if refused := rejection(b"target", cleaned, "refuse"):
        raise ValueError(f"{asked_by} {letters[:30]!r} {refused.reason}")
    return cleaned.decode()


def read_variants(
    table: Table,
    targets: WildTypes,
    *,
    mutation: Sequence[str] = (),
    sequence: str | None = None,
    offset: int = 0,
    leaves_out: bool = False,
) -> VariantTable:
    """The variants of a table.

    A row whose mutations are no substitutions is read from the column of sequences, if there is one.

    Args:
        table: the table.
        targets: of its rows.
        mutation: columns of mutations, such as ``A1P:D2N``; none where sequences are given alone.
        sequence: column of whole sequences, of any length.
        offset: what is added to the numbers of mutations to count residues of the target from 1.
        leaves_out: whether single rows that contradict their target have no variant; otherwise they are refused.

    Raises:
        ValueError: there is neither column; a target has another residue than a row says.
    """
    if not mutation and sequence is None:
        raise ValueError(
            f"{table.name}: has no column {MUTATION!r} of mutations and none {SEQUENCE!r} of sequences, only "
            f"{table.shown_columns}; name one with --mutations or --sequences"
        )
    notes = dict(targets.unusable)
    found: list[Variant | None] = [None] * table.num_rows
    if mutation:
        read = variants(table, mutation, targets, offset=offset, leaves_out=leaves_out)
        notes = dict(read.unusable)
        pairs = zip(read.sequences, read.mutated, strict=True)
        found = [None if whole is None else Variant(whole, mutated) for whole, mutated in pairs]
    if sequence is not None:
        table.require(sequence, "--sequences")
        written = mutation_cells(table, mutation) if mutation else [None] * table.num_rows
        for row, (text, changes) in enumerate(zip(table.column(sequence), written, strict=True)):
            if row not in targets.unusable:
                _read_sequence(row, text, sequence, changes, targets, found, notes)
    return VariantTable(tuple(targets.of_rows), tuple(found), notes)


def _read_sequence(
    row: int,
    text: str | None,
    column: str,
    changes: str | None,
    targets: WildTypes,
    found: list[Variant | None],
    notes: dict[int, str],
) -> None:
    """Give a row the variant that its column of sequences holds, or a note."""
    letters = letters_of((text or "").encode("utf-8", "replace")).upper()
    if is_missing(letters):
        if found[row] is None:
            notes.setdefault(row, f"its column {column!r} {f'says {text!r}' if letters else 'is empty'}")
        return
    known, found[row] = found[row], None
    if refused := rejection(b"variant", letters, "refuse"):
        notes[row] = f"its column {column!r} {refused.reason}"
        return
    own = variant_of(targets.letters[targets.of_rows[row]], letters.decode())
    if known is not None and known.sequence != own.sequence:
        notes[row] = (
            f"its column {column!r} is not what {changes!r} makes of {targets.of_rows[row]}; correct one of the two, "
            "or read one with --mutations or --sequences"
        )
        return
    found[row] = own
    notes.pop(row, None)


def require_scored(table: Table, rows: VariantTable, schemes: Sequence[Scheme], ways: str = "") -> None:
    """Refuse rows without a score that can be known before anything is computed.

    Args:
        table: the table.
        rows: its variants.
        schemes: of the scores.
        ways: what else a user may do, as the end of a sentence.

    Raises:
        ValueError: there are some.
    """
    for row, note in rows.notes.items():
        raise ValueError(f"{table.row(row)}: {note}; it is one of {len(rows.notes)} such rows: correct them{ways}")
    marginals = [scheme for scheme in schemes if scheme in MARGINALS]
    indels = [row for row, variant in enumerate(rows.variants) if variant and variant.mutated is None]
    if marginals and indels:
        raise ValueError(
            f"{table.row(indels[0])}: has insertions or deletions, as {len(indels)} rows have, and {marginals[0]} "
            f"compares residues at one place; score them by the scheme pseudo-likelihood{ways}"
        )
