"""Sums of float32 tensors that no order of adding changes: integers, which are added exactly.

In: tensors, one value after the other. Out: their sums. Kept: two int64 for each element.
"""

from collections.abc import Iterable, Iterator
from itertools import accumulate

import torch
from torch import Tensor

MOST_BINS = 1 << 12
"""Bins of a step: with `_BELOW`, what 63 bits can hold the sum of."""
_BELOW = 2.0**20
_UPPER, _LOWER = 2.0**30, 2.0**80
"""What the two integers of an element count in: 2^-30, and 2^-80 for what is left."""
_AT_A_TIME = 1 << 17
"""Elements that are converted together, so that what is in between stays in a CPU's cache."""


class ExactSums:
    """Sums of float32 tensors that do not depend on the order in which they are added.

    A value v is stored as two int64: u = rint(2^30 v), and rint(2^80 (v - 2^-30 u)). Both steps are exact in float64
    for every float32 from 2^-57 to 2^20; smaller ones are rounded to multiples of 2^-80. |u| is at most 2^50 and the
    second integer at most 2^49, so sums of `MOST_BINS` values cannot overflow.

    Args:
        shapes: of the tensors.
        device: of the sums.
    """

    def __init__(self, shapes: Iterable[torch.Size], device: torch.device) -> None:
        self._shapes = list(shapes)
        *self._starts, n = accumulate((shape.numel() for shape in self._shapes), initial=0)
        self.integers = torch.zeros(2 * n + 1, dtype=torch.int64, device=device)
        """(2 n + 1,) int64: the upper parts of all elements, the lower ones, and how many values were out of range."""

    def add(self, index: int, values: Tensor) -> None:
        """Add float32 `values` of the shape of tensor `index`."""
        upper, lower = self._parts(index)
        flats = (values.reshape(-1), upper, lower)
        for part, uppers, lowers in zip(*(torch.split(flat, _AT_A_TIME) for flat in flats), strict=True):
            value = part.double()
            fits = value.abs() < _BELOW  # not so for NaN
            self.integers[-1] += len(fits) - fits.sum()
            value = value.where(fits, 0.0)
            counted = (value * _UPPER).round_()
            uppers += counted.long()
            lowers += value.sub_(counted, alpha=1 / _UPPER).mul_(_LOWER).round_().long()

    def read(self) -> Iterator[Tensor]:
        """The sums, float32; all NaN where a value was not below 2^20. Nothing waits for the device."""
        wrong = torch.where(self.integers[-1] > 0, torch.nan, 0.0)
        for index, shape in enumerate(self._shapes):
            upper, lower = self._parts(index)
            yield (upper.double().div_(_UPPER) + lower.double().div_(_LOWER) + wrong).float().view(shape)

    def _parts(self, index: int) -> tuple[Tensor, Tensor]:
        start, size, n = self._starts[index], self._shapes[index].numel(), len(self.integers) // 2
        return self.integers[start : start + size], self.integers[n + start : n + start + size]

    def clear(self) -> None:
        """Begin with zeros."""
        self.integers.zero_()
