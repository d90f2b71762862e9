"""Scales: from numbers in the user's unit to what is learned, and back.

In: numbers and their unit. Out: numbers in the task's scale (itself, log10, or -log10 of mol/l), or in the user's unit.
Kept: nothing. NumPy alone.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from finetune.tables.units import molar_factor
from finetune.tasks.settings import Transform


class Scale(NamedTuple):
    """The scale in which a task is learned. What is learned of x is x, log10(x), or -log10(x in mol/l)."""

    transform: Transform
    unit: str
    """Unit of the user's numbers; 'p' needs a molar one (`finetune.tables.units.MOLAR`)."""

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
