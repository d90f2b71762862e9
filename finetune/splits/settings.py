"""What a recipe says about the split: what decides the part of a record, and how much is held out.

In: values of a recipe. Out: a frozen dataclass whose values are checked. Kept: nothing. Torch is not imported.
"""

from dataclasses import dataclass
from typing import ClassVar, Literal

from data.recipe.setting import IDENTITY, OPERATIONAL, Section, require, setting

By = Literal["homology", "column", "time", "scaffold", "group", "position", "distance", "random", "file"]
Conflict = Literal["refuse", "held_out", "unused"]

IDENTITIES = (0.3, 0.5, 0.9)
"""Identities at which every audit counts relatives."""
GIVEN = ("column", "time", "file")
"""Splits whose parts the table or a file gives, so that they may lack a validation part."""
OF_A_COLUMN = ("column", "time", "scaffold", "group")
"""What reads `split.column`."""
WITH_FOLDS = ("homology", "scaffold", "group", "position", "random")
"""What can deal records to folds."""
_BELONGS: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("train", "validation", "test", "unused", "validation_column"), ("column",)),
    "validation_fraction": GIVEN,
    "cuts": ("time",),
    "folds": WITH_FOLDS,
}
"""Settings that are for some values of `by` alone."""
LEAST_FOLDS = 3
"""One fold is predicted, one chooses the checkpoint, and at least one trains."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SplitSettings(Section):
    """The table `[split]`. `by` decides; most of the other fields belong to one or two of its values."""

    section: ClassVar = "split"
    by: By = setting(IDENTITY, "what decides which records train, validate and test")
    column: str | None = setting(IDENTITY, "column of the parts, of a date or number, of SMILES, or of groups", None)
    train: tuple[str, ...] = setting(
        IDENTITY, "by column: values that mean training; without any, 'train' and words like it", ()
    )
    validation: tuple[str, ...] = setting(
        IDENTITY, "by column: values that mean validation; without any, 'validation' and words like it", ()
    )
    test: tuple[str, ...] = setting(
        IDENTITY, "by column: values that mean test; without any, 'test' and words like it", ()
    )
    unused: tuple[str, ...] = setting(IDENTITY, "by column: values of rows that are in no part", ())
    validation_column: str | None = setting(
        IDENTITY, "by column: a column that is true in those training rows that validate, as in FLIP's tables", None
    )
    conflict: Conflict = setting(
        IDENTITY,
        "by column: what becomes of a sequence with rows in two parts: an error, the part that is held out more "
        "(test, then validation), or no part; by group: 'unused' leaves out sequences with rows in two groups, which "
        "otherwise join them",
        "refuse",
    )
    cuts: tuple[str, ...] = setting(
        IDENTITY,
        "by time: the first date or number that is tested, or those of validation and of test; without, by fractions",
        (),
    )
    identity: float = setting(
        IDENTITY, "by homology: sequences of at least this identity are held out together", 0.3, above=0, at_most=1
    )
    distance: int = setting(IDENTITY, "by distance: the most mutations of a sequence that trains", 2, at_least=0)
    fractions: tuple[float, ...] = setting(
        IDENTITY,
        "shares of training, validation and test, of the records or, by position, of the positions' records",
        (0.8, 0.1, 0.1),
        at_least=0,
        at_most=1,
    )
    validation_fraction: float = setting(
        IDENTITY,
        "by column, time, file: share of the training records that validates where the split has no validation part, "
        "drawn by whole clusters of relatives, of variants by whole mutated positions",
        0.0,
        at_least=0,
        below=1,
    )
    folds: int = setting(
        IDENTITY, "number of folds, each predicted once by a model that did not train on it; 0 for none", 0, at_least=0
    )
    seed: int = setting(IDENTITY, "seed of what is drawn", 0, at_least=0)
    file: str | None = setting(
        IDENTITY, "by file: a split.csv with the columns id and part, or id and fold", None, "path"
    )
    search_pretraining: bool = setting(
        OPERATIONAL, "whether the audit searches the pretraining corpus for relatives, besides equal sequences", False
    )

    def __post_init__(self) -> None:
        """Refuse settings that contradict each other."""
        Section.__post_init__(self)
        for name, users in (("column", OF_A_COLUMN), ("file", ("file",))):
            value = getattr(self, name)
            if self.by in users and not value:
                raise ValueError(f"split.by is {self.by!r} and split.{name} is not given; name the {name}")
            if self.by not in users and value:
                listed = ", ".join(map(repr, users))
                raise ValueError(
                    f"split.{name} is {value!r} and split.by is {self.by!r}, which does not read it; leave it out, or "
                    f"choose split.by among {listed}"
                )
        for name, readers in _BELONGS.items():
            value = getattr(self, name)
            said = f"it belongs to split.by {'among' if len(readers) > 1 else '='} {', '.join(map(repr, readers))}"
            require(self.by in readers or not value, f"split.{name}", value, said)
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
