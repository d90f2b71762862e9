"""What a recipe says about a task: which columns, what they mean, and how they are learned.

In: values of a recipe. Out: a frozen dataclass whose values are checked. Kept: nothing. Torch is not imported.
"""

from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from finetune.tables.numbers import MISSING
from zymogen.settings.extension import FORM, is_external, require_name
from zymogen.settings.section import IDENTITY, OPERATIONAL, Section, require, setting

if TYPE_CHECKING:
    from finetune.task_types.task_type import TaskType

TASK_TYPES = ("regression", "binary", "multiclass", "ordinal", "multilabel")
"""Types of ours (`finetune.task_types.registry`)."""
Level = Literal["sequence", "residue", "pair"]
Transform = Literal["none", "log10", "p"]


@dataclass(frozen=True, kw_only=True, slots=True)
class TaskSettings(Section):
    """One table `[[tasks]]`: an objective with one output for each of its columns."""

    section: ClassVar = "tasks"
    name: str = setting(IDENTITY, "name of the task in metrics, predictions and the bundle")
    columns: tuple[str, ...] = setting(
        IDENTITY, "columns of its labels, or patterns such as 'CHEMBL*'; the name, where none is given", ()
    )
    columns_are: Literal["tasks", "replicates", "lists"] = setting(
        IDENTITY,
        "what columns are: tasks of their own, replicates of one task, or one column of 'lists' of labels such as "
        "'A; B', each label of which is an output",
        "tasks",
    )
    type: str = setting(
        IDENTITY,
        "what a label is: a number ('regression'), yes or no ('binary', of several columns 'multilabel'), one of "
        f"several classes ('multiclass', in an order 'ordinal'), or {FORM} for a class of your own",
        extends="class",
    )
    options: dict[str, Any] = setting(IDENTITY, "settings of a class of your own", {})
    level: Level = setting(IDENTITY, "what has a label: a sequence, each residue, each pair of residues", "sequence")
    residue_numbers: Literal["none", "from_0", "from_1"] = setting(
        IDENTITY,
        "cells list numbers of residues, counted from 0 or from 1: those that are listed are 1, all others 0",
        "none",
        only=("level", ("residue",)),
    )
    unit: str = setting(IDENTITY, "unit of the labels, such as 'nM'", "")
    unit_column: str | None = setting(IDENTITY, "column that holds the unit of each row's label", None)
    bound_column: str | None = setting(
        IDENTITY,
        "column that says whether a row's number is exact, or a bound of the true value, such as '>'",
        None,
    )
    lower_bounds: tuple[str, ...] = setting(
        IDENTITY,
        "texts of bound_column that mean that the true value is above the number, besides words like '>'",
        (),
        only=("bound_column", ()),
    )
    upper_bounds: tuple[str, ...] = setting(
        IDENTITY, "the same where the true value is below, besides '<'", (), only=("bound_column", ())
    )
    transform: Transform = setting(
        IDENTITY,
        "what is learned of a number: itself, its logarithm, or -log10 of it in mol/l ('p')",
        "none",
    )
    replicates: Literal["mean", "median", "refuse", "leave_out"] = setting(
        IDENTITY,
        "what becomes of several measurements of one sequence: their mean, median, an error, or their mean with no "
        "label where they contradict each other",
        "mean",
    )
    conditions: tuple[str, ...] = setting(
        IDENTITY,
        "columns of conditions, such as 'pH' or 'SMILES': one output for each distinct value, as labels that were "
        "measured under different conditions are no replicates",
        (),
    )
    classes: tuple[str, ...] = setting(
        IDENTITY,
        "names of the classes, in their order if they are ordinal; of two, the second one is positive; without any, "
        "those of the table",
        (),
    )
    weight: float = setting(IDENTITY, "factor of its mean loss in the loss that is minimised", 1.0, above=0)
    imbalance: Literal["none", "pos_weight", "focal"] = setting(
        IDENTITY,
        "how a rare class counts: as it is, by its inverse frequency, or by focal loss",
        "none",
    )
    missing: tuple[str, ...] = setting(
        IDENTITY, "texts that mean that nothing was measured, in any case, besides empty cells", MISSING
    )

    active_from: float | None = setting(
        OPERATIONAL,
        "number from which on one counts as active, in the scale that is learned; the task then has AUROC, AP and "
        "enrichment too",
        None,
    )

    def __post_init__(self) -> None:
        """Refuse settings that contradict each other.

        Raises:
            ValueError: which settings of which task, and what to change.
        """
        Section.__post_init__(self)
        name = self.dotted_name
        require_name(f"{name}.type", self.type, TASK_TYPES)
        if not is_external(self.type):
            said = f"only a class of your own reads it, and {name}.type is {self.type!r}"
            require(not self.options, f"{name}.options", self.options, said)
            self.kind.check()
        distinct = len(set(self.classes)) == len(self.classes)
        require(distinct, f"{name}.classes", list(self.classes), "name each once")

    @property
    def dotted_name(self) -> str:
        """Its name, as an override of the command line has it; a URL, which is refused, is none."""
        return "tasks" if "://" in self.name else f"tasks.{self.name}"

    @property
    def kind(self) -> "TaskType":
        """Its type; one of the user's is imported here.

        Raises:
            ValueError: it cannot be imported, or an option is not allowed.
        """
        # By its name, as types import the rooms that import this one.
        found: TaskType = import_module("finetune.task_types.registry").task_type(self)
        return found

    @property
    def is_number(self) -> bool:
        """Whether a label is a number, and not a class."""
        return self.kind.is_number
