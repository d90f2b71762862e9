"""The base class of types of tasks (docs/extending.md).

In: settings of a task. Out: labels, losses, predictions and metrics. Kept: nothing. Shapes: n targets of a task with C
classes.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import fields
from typing import TYPE_CHECKING, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from finetune.metrics.calibration import log_odds
from finetune.metrics.predictions import OutputRows
from finetune.metrics.weighted import Floats, Metric
from finetune.tasks.settings import TaskSettings
from finetune.tasks.task import Task
from zymogen.settings.options import NoOptions
from zymogen.settings.section import Section, require, unknown_word

if TYPE_CHECKING:
    from torch import Tensor, nn

    from finetune.labels.locate import ColumnCells
    from finetune.tasks.cells import NonEmptyCells

_OF_NUMBERS, _OF_CLASSES = ("bound_column", "transform", "active_from"), ("classes", "imbalance")
"""Settings that only tasks of numbers, or of classes, read."""


class ParsedLabels(NamedTuple):
    """The labels of the columns of a task."""

    values: list[NDArray[np.float64]]
    """For each column (labels,) numbers in the task's scale, or indices of classes."""
    censoring: list[NDArray[np.int8]]
    """For each column (labels,) which are bounds, as `finetune.labels.labels` has them."""
    classes: tuple[str, ...]
    """Names of the classes; empty for numbers."""
    unit: str
    """Unit of the user's numbers; empty where none is known."""


class TaskType(ABC):
    """A type of task.

    Args:
        settings: of the task.
        options: what its `options` say, as `Options`.
    """

    Options: ClassVar[type[Section]] = NoOptions
    """A dataclass of settings of its own."""
    is_number: ClassVar[bool]
    """Whether a label is a number, and not a class."""
    is_binary: ClassVar[bool] = False
    """Whether each label is one of two classes, of which the second one is positive."""
    is_ordered: ClassVar[bool] = False
    """Whether classes are in an order."""
    predicts_each_class: ClassVar[bool] = False
    """Whether a prediction is (n, C) probabilities of all classes; otherwise (n,) numbers, or probabilities of yes."""
    standardizes: ClassVar[bool] = True
    """Whether a loss gets z-scores of numbers; predictions are then undone. Otherwise numbers in the task's scale."""
    averages_columns: ClassVar[bool] = False
    """Whether columns enter the stopping metric as their mean, which is a score too."""
    transformers_problem: ClassVar[str] = ""
    """`problem_type` of a model of transformers; empty where it has none, and an export is refused."""
    logits_are: ClassVar[str] = ""
    """What the logits of such a model are, as a sentence."""

    def __init__(self, settings: TaskSettings, options: Section) -> None:
        self.settings, self.options = settings, options

    def check(self) -> None:
        """Refuse settings that no label of this type reads.

        Raises:
            ValueError: which settings of which task, and what to change.
        """
        name, of = self.settings.dotted_name, self.settings
        default = {f.name: f.default for f in fields(of)}
        for field in _OF_CLASSES if self.is_number else _OF_NUMBERS:
            kind = "classes" if self.is_number else "numbers"
            said = f"only a task of {kind} reads it, and {name}.type is {of.type!r}: take it out ({name}.{field}=none)"
            require(getattr(of, field) == default[field], f"{name}.{field}", getattr(of, field), said)
        if self.is_binary:
            said = f"of a task of type {of.type} give two, the negative one first, or none"
            require(len(of.classes) in (0, 2), f"{name}.classes", list(of.classes), said)
        if of.columns_are == "lists":
            is_plain = self.averages_columns and of.level == "sequence" and len(of.columns) <= 1
            allowed = "lists are one column of a multilabel task of whole sequences, without classes and conditions"
            is_plain = is_plain and not of.classes and not of.conditions
            require(is_plain, f"{name}.columns_are", "lists", allowed)

    def parse(
        self, columns: "Sequence[ColumnCells]", placed: "Sequence[NonEmptyCells]", decimal: str, said: list[str]
    ) -> ParsedLabels:
        """Return the labels of the columns.

        Args:
            columns: of the task.
            placed: the labels of each, as text.
            decimal: the decimal sign of numbers, or "auto".
            said: gets sentences for the user.

        Raises:
            ValueError: a label cannot be read; the message names file, row, column and what to change.
        """
        from finetune.labels.numbers import numbers_of
        from finetune.tasks.classes import classes_of

        if self.is_number:
            values, censoring, unit = numbers_of(columns, placed, self.settings, decimal, said)
            return ParsedLabels(values, censoring, (), unit)
        texts = tuple(dict.fromkeys(text for cells in placed for text in cells.texts))
        classes = classes_of(self.settings, texts)
        if self.is_binary:
            said.append(f"{self.settings.name}: {classes[1]!r} is positive, {classes[0]!r} is negative")
        pairs = zip(columns, placed, strict=True)
        values = [_indices(column, cells, classes, self.settings) for column, cells in pairs]
        return ParsedLabels(values, [np.zeros(len(each), np.int8) for each in values], classes, self.settings.unit)

    def shape(self, num_classes: int) -> tuple[int, ...]:
        """Return the shape of the numbers that a head gives each target: () for one."""
        return ()

    def output_module(self, num_outputs: int, num_classes: int) -> "nn.Module | None":
        """Return a module that changes a head's numbers: (n, ...) and (n,) outputs to what `loss` takes."""
        return None

    @abstractmethod
    def loss(self, numbers: "Tensor", labels: "Tensor", censoring: "Tensor") -> "Tensor":
        """Return the loss of each target, ``(n,)``; missing labels have no target.

        Args:
            numbers: ``(n, ...)`` of the head.
            labels: ``(n,)`` numbers as `standardizes` says, in the dtype of `numbers`, or indices of classes.
            censoring: ``(n,)`` integers: 0 exact, -1 the true value is below the label, 1 it is above.
        """

    @abstractmethod
    def activate(self, numbers: "Tensor") -> "Tensor":
        """Return predictions of what a head gives, float64 on the host: ``(n,)``, or ``(n, C)`` probabilities."""

    @abstractmethod
    def metric(self, truth: Floats, ranks: Floats, censoring: NDArray[np.int8]) -> Metric:
        """Return the metric that chooses checkpoints, of the rows of one output. The higher the better; 1 is best.

        Args:
            truth: (n,) numbers, ones and zeros, or indices of classes.
            ranks: (n,) what orders the rows, rising with the truth; (n, C) of classes without an order.
            censoring: (n,) which numbers are bounds.
        """

    def other_metrics(self, rows: OutputRows, notes: list[str]) -> dict[str, float]:
        """Return other metrics of the rows by name; `notes` gets sentences on what is not measured."""
        return {}

    def ranking(self, prediction: Floats) -> Floats:
        """Return what orders rows: (n,), or (n, C) of classes without an order."""
        return prediction

    def relative(self, task: Task, outputs: NDArray[np.int64], prediction: Floats) -> Floats:
        """Return what orders rows that models of several folds predicted; 0 where a model knows the labels alone.

        It is what a model says beyond the mean, or the shares of classes, of its training labels. These are a little
        lower where those that were left out are higher, so that a model which knows nothing else would rank below
        chance.

        Args:
            task: of a fold.
            outputs: (n,) of each row.
            prediction: (n,) or (n, C).
        """
        if self.is_number:
            return np.round((prediction - task.mean[outputs]) / task.std[outputs], 9)
        shares = task.shares(outputs)
        return np.round(log_odds(prediction) - log_odds(shares if prediction.ndim == 2 else shares[:, 1]), 9)


def _indices(
    column: "ColumnCells", cells: "NonEmptyCells", classes: Sequence[str], settings: TaskSettings
) -> NDArray[np.float64]:
    """Return the index of the class of each label."""
    from finetune.tasks.classes import index_of

    of_texts = [index_of(text, classes, settings) for text in cells.texts]
    for text, index in enumerate(of_texts):
        if index is None:
            wrong = unknown_word(f"the class of {settings.name!r}", cells.texts[text], classes)
            raise ValueError(
                f"{column.where(cells.first_row(text))}: {wrong}; correct it, add it to tasks.classes, or to "
                "tasks.missing if it means that nothing was measured"
            )
    return np.array(of_texts, np.float64)[cells.which]
