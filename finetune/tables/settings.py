"""What a recipe says about its tables: where they are, and which protein each row is about.

In: values of a recipe. Out: a frozen dataclass whose values are checked. Kept: nothing. Torch is not imported.
"""

from dataclasses import dataclass
from typing import ClassVar, Literal

from data.settings import LetterPolicy
from zymogen.settings.origin import format_option
from zymogen.settings.section import IDENTITY, OPERATIONAL, Section, require, setting

TooLong = Literal["refuse", "start", "end", "ends", "window"]
RowPolicy = Literal["refuse", "leave_out"]
EmptyMutation = Literal["missing", "wild_type"]
Decimal = Literal["auto", ".", ","]

LINKER = "G" * 25
"""What stands between two chains that are joined: flexible, and what ESM-2 users join chains with; never pooled or
labelled."""

_OF_MUTATIONS = ("mutation", ())


@dataclass(frozen=True, kw_only=True, slots=True)
class TableSettings(Section):
    """The part of `[data]` that says which tables are read, and how a row becomes a protein."""

    section: ClassVar = "data"
    table: tuple[str, ...] = setting(
        OPERATIONAL,
        "tables of assays: CSV, TSV, .xlsx, Parquet, JSON, FASTA with labels in its headers, 'datasets://NAME', or "
        "'x.zip/member.csv'; parameters after '?' (docs/finetune/tables.md)",
        (),
        "path",
    )
    sequence: tuple[str, ...] = setting(
        IDENTITY,
        "column of the protein's sequence, or the two columns of two chains that are joined; with `mutation`, of each "
        "row's wild type; without it, the column with a usual name",
        (),
    )
    mutation: tuple[str, ...] = setting(
        IDENTITY,
        "column of mutations such as 'A123T' or 'A1P:D2N', or several whose cells make one together, such as wild-type "
        "residue, number and residue; they change wild_type, or the sequence of each row",
        (),
    )
    wild_type: str | None = setting(
        OPERATIONAL,
        "FASTA file of the proteins that `mutation` changes: one record, or several with `protein`",
        None,
        "path",
        only=_OF_MUTATIONS,
    )
    protein: str | None = setting(
        IDENTITY, "column that names the record of wild_type that a row changes", None, only=_OF_MUTATIONS
    )
    numbering_offset: int | None = setting(
        IDENTITY,
        "what is added to the numbers of mutations to count residues of the wild type from 1; without it, it is found",
        None,
        only=_OF_MUTATIONS,
    )
    empty_mutation: EmptyMutation = setting(
        IDENTITY,
        "what a row without a mutation is: 'missing' its protein, or the 'wild_type'",
        "missing",
        only=_OF_MUTATIONS,
    )
    id: str | None = setting(
        IDENTITY, "column that names a row's protein in splits and predictions; without it, a usual one or row-17", None
    )
    too_long: TooLong = setting(
        IDENTITY,
        "a protein longer than crop_tokens: 'refuse' it, or keep its 'start', its 'end', half of both 'ends', or, with "
        "mutations, a 'window' around them; a mutated residue is never cut away",
        "refuse",
    )
    rows_without_protein: RowPolicy = setting(
        IDENTITY,
        "a row without a sequence that can be read, or whose mutation is no substitution, or contradicts the wild type "
        "where nearly all others fit it: 'refuse' the table, or 'leave_out' the row",
        "refuse",
    )
    unknown_letters: LetterPolicy = setting(
        IDENTITY, "signs of unknown residues (?, *, - and .): 'refuse' the row, or read as <unk> and 'count'", "refuse"
    )
    decimal: Decimal = setting(
        IDENTITY, "decimal point or comma of numbers; 'auto' decides for each column by its cells", "auto"
    )

    def __post_init__(self) -> None:
        Section.__post_init__(self)
        name = f"{self.section}.sequence"
        require(len(self.sequence) <= 2, name, list(self.sequence), "name one column, or two that are joined")
        require(len(set(self.sequence)) == len(self.sequence), name, list(self.sequence), "name two different columns")
        said = "it is around mutated residues; name their column with mutation, or keep the 'start', 'end' or 'ends'"
        is_possible = bool(self.mutation) or self.too_long != "window"
        require(is_possible, f"{self.section}.too_long", self.too_long, said)
        mutation, own = f"{self.section}.mutation", list(self.mutation)
        if self.mutation and self.sequence:
            said = "data.sequence is given too, and is the wild type of each row then; leave one of them out"
            require(self.wild_type is None, f"{self.section}.wild_type", self.wild_type, said)
            require(self.protein is None, f"{self.section}.protein", self.protein, said)
            require(
                len(self.sequence) == 1, name, list(self.sequence), "mutations change one sequence; name one column"
            )
        elif self.mutation:
            wild_type = format_option("data.wild_type", after=", a FASTA file of the protein that is mutated")
            column = format_option("data.sequence", after=", the column of the wild type of each row")
            require(
                self.wild_type is not None,
                format_option(mutation) or mutation,
                own,
                f"it needs {wild_type}, or {column}",
            )
