"""What a recipe says about the split: what decides the part of a record, and how much is held out.

In: values of a recipe. Out: a frozen dataclass whose values are checked. Kept: nothing. Torch is not imported.
"""

from dataclasses import dataclass
from typing import ClassVar, Literal

from zymogen.settings.section import IDENTITY, OPERATIONAL, Section, require, setting

By = Literal["homology", "column", "time", "scaffold", "group", "position", "distance", "random", "file"]

IDENTITIES = (0.3, 0.5, 0.9)
"""Identities at which every audit counts relatives."""
GIVEN = ("column", "time", "file")
"""Splits whose parts the table or a file gives, so that they may lack a validation part."""
OF_A_COLUMN = ("column", "time", "scaffold", "group")
"""What reads `split.column`."""
WITH_FOLDS = ("homology", "scaffold", "group", "position", "random")
"""What can deal records to folds."""
_BY_COLUMN = ("by", ("column",))
"""What reads the words of a table's own parts."""
LEAST_FOLDS = 3
"""One fold is predicted, one chooses the checkpoint, and at least one trains."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SplitSettings(Section):
    """The table `[split]`. `by` decides; most of the other fields belong to one or two of its values."""

    section: ClassVar = "split"
    by: By = setting(IDENTITY, "what decides which records train, validate and test")
    column: str | None = setting(
        IDENTITY, "column of the parts, of a date or number, of SMILES, or of groups", None, only=("by", OF_A_COLUMN)
    )
    train: tuple[str, ...] = setting(
        IDENTITY, "values that mean training; without any, 'train' and words like it", (), only=_BY_COLUMN
    )
    validation: tuple[str, ...] = setting(
        IDENTITY, "values that mean validation; without any, 'validation' and words like it", (), only=_BY_COLUMN
    )
    test: tuple[str, ...] = setting(
        IDENTITY, "values that mean test; without any, 'test' and words like it", (), only=_BY_COLUMN
    )
    unused: tuple[str, ...] = setting(IDENTITY, "values of rows that are in no part", (), only=_BY_COLUMN)
    validation_column: str | None = setting(
        IDENTITY,
        "a column that is true in those training rows that validate, as in FLIP's tables",
        None,
        only=_BY_COLUMN,
    )
    conflict: Literal["refuse", "held_out", "unused"] = setting(
        IDENTITY,
        "by column: what becomes of a sequence with rows in two parts: an error, the part that is held out more "
        "(test, then validation), or no part; by group: 'unused' leaves out sequences with rows in two groups, which "
        "otherwise join them",
        "refuse",
        only=("by", ("column", "group")),
    )
    cuts: tuple[str, ...] = setting(
        IDENTITY,
        "the first date or number that is tested, or those of validation and of test; without, by fractions",
        (),
        only=("by", ("time",)),
    )
    identity: float = setting(
        IDENTITY, "by homology: sequences of at least this identity are held out together", 0.3, above=0, at_most=1
    )
    distance: int = setting(
        IDENTITY, "the most mutations of a sequence that trains", 2, only=("by", ("distance",)), at_least=0
    )
    fractions: tuple[float, ...] = setting(
        IDENTITY,
        "shares of training, validation and test, of the records or, by position, of the positions' records",
        (0.8, 0.1, 0.1),
        only=("by", (*WITH_FOLDS, "distance", "time")),
        at_least=0,
        at_most=1,
    )
    validation_fraction: float = setting(
        IDENTITY,
        "share of the training records that validates where the split has no validation part, drawn by whole clusters "
        "of relatives, of variants by whole mutated positions",
        0.0,
        only=("by", GIVEN),
        at_least=0,
        below=1,
    )
    folds: int = setting(
        IDENTITY,
        "number of folds, each predicted once by a model that did not train on it; 0 for none",
        0,
        only=("by", WITH_FOLDS),
        at_least=0,
    )
    seed: int = setting(IDENTITY, "seed of what is drawn", 0, at_least=0)
    file: str | None = setting(
        IDENTITY, "a split.csv with the columns id and part, or id and fold", None, "path", only=("by", ("file",))
    )
    search_pretraining: bool = setting(
        OPERATIONAL, "whether the audit searches the pretraining corpus for relatives, besides equal sequences", False
    )

    def __post_init__(self) -> None:
        """Refuse settings that contradict each other."""
        Section.__post_init__(self)
        for name, readers in (("column", OF_A_COLUMN), ("file", ("file",))):
            if self.by in readers and not getattr(self, name):
                raise ValueError(f"split.by is {self.by!r} and split.{name} is not given; name the {name}")
        require(len(self.cuts) <= 2, "split.cuts", self.cuts, "give one, of test, or two, of validation and of test")
        said = "give three shares, of training, validation and test, that add up to 1; training must have some"
        holds = len(self.fractions) == 3 and abs(sum(self.fractions) - 1.0) < 1e-6 and self.fractions[0] > 0
        require(holds, "split.fractions", self.fractions, said)
        said = f"give 0, or at least {LEAST_FOLDS}: one fold is predicted, one validates, the others train"
        require(not self.folds or self.folds >= LEAST_FOLDS, "split.folds", self.folds, said)

    @property
    def audited_identities(self) -> tuple[float, ...]:
        """Identities at which an audit counts relatives: 30, 50 and 90 %, and that of a split by homology."""
        return tuple(sorted({*IDENTITIES, *([self.identity] if self.by == "homology" else [])}))
