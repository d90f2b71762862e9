"""A task: one entry of `[[tasks]]` with all that its training labels decided, and its scale.

In: settings, and facts of the training labels; numbers and their unit. Out: what heads, losses, metrics and bundles
read; numbers in the task's scale (itself, log10, or -log10 of mol/l), or in the user's unit. Kept: nothing. NumPy
alone.
"""

import math
from dataclasses import dataclass
from typing import Annotated, NamedTuple

import numpy as np
from numpy.typing import NDArray

from finetune.tables.numbers import molar_factor
from finetune.tasks.settings import TaskSettings, Transform
from zymogen.settings.json_file import array


class Scale(NamedTuple):
    """The scale in which a task is learned. What is learned of x is x, log10(x), or -log10(x in mol/l)."""

    transform: Transform
    unit: str
    """Unit of the user's numbers; 'p' needs a molar one (`finetune.tables.numbers.MOLAR`)."""

    @property
    def turns_bounds(self) -> bool:
        """Whether a number below a bound becomes one above it."""
        return self.transform == "p"

    @property
    def is_logarithm(self) -> bool:
        """Whether only positive numbers have a value in this scale."""
        return self.transform != "none"

    def of(self, values: NDArray[np.float64]) -> NDArray[np.float64]:
        """Numbers in the user's unit to the task's scale; those of a logarithm must be positive.

        Raises:
            ValueError: the scale is 'p' and the unit is not molar.
        """
        if self.transform == "none":
            return values
        if self.transform == "log10":
            return np.log10(values)
        # Powers of ten are added, not multiplied, so that 100 nM is 7 exactly.
        return -(np.log10(values) + self.exponent())

    def undone(self, values: NDArray[np.float64]) -> NDArray[np.float64]:
        """Numbers in the task's scale to the user's unit: what `of` took.

        Raises:
            ValueError: the scale is 'p' and the unit is not molar.
        """
        if self.transform == "none":
            return values
        return 10.0 ** (values if self.transform == "log10" else -values - self.exponent())

    def exponent(self) -> int:
        """The power of ten of mol/l that the unit is: -9 for nM.

        Raises:
            ValueError: the unit is not molar.
        """
        return round(float(np.log10(molar_factor(self.unit, "the unit"))))


@dataclass(frozen=True, slots=True)
class Task:
    """What one head predicts: O outputs (tasks) of one type, with C classes where these are classes."""

    settings: TaskSettings
    outputs: tuple[str, ...]
    """Names of the O tasks: the columns, or the name of the entry where it has one output."""
    classes: tuple[str, ...]
    """Names of the C classes in the order of their indices; of two, the second one is positive; empty for numbers."""
    mean: Annotated[NDArray[np.float64], array(list[float], np.float64)]
    """(O,) mean of the training labels in the task's scale; 0 for classes."""
    std: Annotated[NDArray[np.float64], array(list[float], np.float64)]
    """(O,) their standard deviation, above 0; 1 for classes and where training labels do not vary."""
    class_counts: Annotated[NDArray[np.int64], array(list[list[int]], np.int64)]
    """(O, C) training labels of each class; (O, 0) for numbers."""
    unit: str = ""
    """Unit of the user's numbers, in which predictions are given; empty where none is known."""
    num_labels: Annotated[NDArray[np.int64], array(list[int], np.int64)] | None = None
    """(O,) training labels of each task; a task without any is not trained, and has no metrics."""

    def __post_init__(self) -> None:
        lengths = {len(each) for each in (self.mean, self.std, self.num_labels) if each is not None}
        if not self.outputs or lengths != {len(self.outputs)}:
            raise ValueError(f"task {self.settings.name!r}: its {len(self.outputs)} outputs and their numbers disagree")
        if self.class_counts.shape != (len(self.outputs), len(self.classes)):
            raise ValueError(f"task {self.settings.name!r}: its classes and their counts disagree")

    @property
    def is_trained(self) -> NDArray[np.bool_]:
        """(O, C) whether a class has training labels; a class without any is left out of the task's metrics."""
        return self.class_counts > 0

    @property
    def width(self) -> int:
        """Numbers that the head gives a place, for all outputs."""
        return len(self.outputs) * math.prod(self.settings.kind.shape(len(self.classes)))

    def called(self, outputs: int | NDArray[np.int64], probabilities: NDArray[np.float64]) -> NDArray[np.int64]:
        """Return (n,) the class that is predicted: of those that were trained, the one with the largest probability.

        Args:
            outputs: of all, or (n,) of each.
            probabilities: (n,) of yes, or (n, C) of classes.
        """
        if probabilities.ndim == 1:
            return (probabilities >= 0.5).astype(np.int64)
        return np.asarray(np.where(self.is_trained[outputs], probabilities, -1.0).argmax(1), np.int64)

    def shares(self, outputs: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return (n, C) the shares of the classes among the training labels of (n,) outputs."""
        counts = self.class_counts[outputs].astype(np.float64)
        return np.asarray(counts / np.maximum(counts.sum(1, keepdims=True), 1), np.float64)

    @property
    def scale(self) -> Scale:
        """What turns numbers in the user's unit into the task's scale, and back."""
        return Scale(self.settings.transform, self.unit)
