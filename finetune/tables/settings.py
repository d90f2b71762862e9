"""What a recipe says about its tables: where they are, and which protein each row is about.

In: values of a recipe. Out: a frozen dataclass whose values are checked. Kept: nothing. Torch is not imported.
"""

from dataclasses import dataclass
from typing import ClassVar, Literal

from data.alphabet import LETTER_IDS, REFUSED
from data.recipe.setting import IDENTITY, OPERATIONAL, Section, require, setting
from data.recipe.settings import LetterPolicy

TooLong = Literal["refuse", "start", "end", "ends"]
RowPolicy = Literal["refuse", "leave_out"]
EmptyMutation = Literal["missing", "wild_type"]
Decimal = Literal["auto", ".", ","]

LINKER = "G" * 25
"""What stands between two chains that are joined: flexible, and what ESM-2 users join chains with."""


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
        "column of the protein's sequence, or the two columns of two chains that are joined; without it, the column "
        "with a usual name",
        (),
    )
    mutation: str | None = setting(
        IDENTITY, "column of mutations such as 'A123T' or 'A1P:D2N', in place of a sequence; needs wild_type", None
    )
    wild_type: str | None = setting(
        OPERATIONAL,
        "FASTA file of the proteins that `mutation` changes: one record, or several with `protein`",
        None,
        "path",
    )
    protein: str | None = setting(IDENTITY, "column that names the record of wild_type that a row changes", None)
    numbering_offset: int | None = setting(
        IDENTITY,
        "what is added to the numbers of mutations to count residues of wild_type from 1; without it, it is found",
        None,
    )
    empty_mutation: EmptyMutation = setting(
        IDENTITY, "what a row without a mutation is: 'missing' its protein, or the 'wild_type'", "missing"
    )
    id: str | None = setting(
        IDENTITY, "column that names a row's protein in splits and predictions; without it, a usual one or row-17", None
    )
    linker: str = setting(IDENTITY, "residues between two chains that are joined; never pooled or labelled", LINKER)
    too_long: TooLong = setting(
        IDENTITY,
        "a protein longer than crop_tokens: 'refuse' it, or keep its 'start', its 'end', or half of both 'ends'",
        "refuse",
    )
    rows_without_protein: RowPolicy = setting(
        IDENTITY,
        "a row without a sequence, or whose mutation is no substitution: 'refuse' the table, or 'leave_out' the row",
        "refuse",
    )
    unknown_letters: LetterPolicy = setting(
        IDENTITY, "letters outside the alphabet: 'refuse' the row, or read as <unk> and 'count'", "refuse"
    )
    decimal: Decimal = setting(
        IDENTITY, "decimal point or comma of numbers; 'auto' decides for each column by its cells", "auto"
    )

    def __post_init__(self) -> None:
        Section.__post_init__(self)
        name = f"{self.section}.sequence"
        require(len(self.sequence) <= 2, name, list(self.sequence), "name one column, or two that are joined")
        require(len(set(self.sequence)) == len(self.sequence), name, list(self.sequence), "name two different columns")
        letters = self.linker.encode()
        require(
            all(LETTER_IDS[letter] != REFUSED for letter in letters),
            f"{self.section}.linker",
            self.linker,
            "it consists of amino acid letters, such as 25 G",
        )
        if self.mutation is None:
            for setting_name in ("wild_type", "protein", "numbering_offset"):
                value = getattr(self, setting_name)
                said = f"it belongs to {self.section}.mutation, which names the column of mutations and is not given"
                require(value is None, f"{self.section}.{setting_name}", value, said)
        else:
            said = f"{self.section}.sequence is given too: a row's protein is one of the two; leave one of them out"
            require(not self.sequence, f"{self.section}.mutation", self.mutation, said)
            said = "it needs data.wild_type, a FASTA file of the protein that is mutated"
            require(self.wild_type is not None, f"{self.section}.mutation", self.mutation, said)
