"""The scale of what a head reads: mean and deviation over the training part, of each channel or of each direction.

In: vectors. Out: the same, standardised or whitened. Kept: constants, by device.

Vectors of variants of one protein differ by a thousandth of their length. A head that reads them as they are has to
learn a large map before it tells any two apart; standardised, the differences are what it reads first. Channels of an
encoder go together: of an `esm2_800k`, some seven directions hold nearly all that varies. Steps along a gradient learn
a direction at a rate that goes with its variance, so a head on standardised vectors never gets to the others. Whitened,
all directions vary alike.
"""

import base64
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from finetune.tasks.constants import DeviceConstants

_LEAST = 1e-6
"""Smallest standard deviation that is divided by."""
_LEAST_SHARE = 0.01
"""Least share by which correlations are shrunk: it bounds how often the rounding of a vector is magnified, by ten."""
_MOST_DIRECTIONS = 64
"""Directions that get a deviation of their own; the others, which vary least, share one."""


Directions = tuple[NDArray[np.float32], NDArray[np.float32]]
"""``(K, W)`` orthonormal rows along which vectors vary more than along others; and ``(K,)`` factors between -1 and 0:
what is added along each, of its share of a vector."""


class InputScale:
    """What is subtracted from each channel, what it is divided by, and how directions are made to vary alike.

    Args:
        mean: ``(W,)`` float32.
        std: ``(W,)`` float32, above 0.
        directions: what whitens vectors that were divided; None where channels are standardised alone.
    """

    def __init__(
        self, mean: NDArray[np.float32], std: NDArray[np.float32], directions: Directions | None = None
    ) -> None:
        self.mean, self.std, self.directions = mean, std, directions
        self._on = DeviceConstants(mean, std, *(directions or ()))

    def __call__(self, vectors: Tensor) -> Tensor:
        """Standardise ``(n, W)``; the dtype stays."""
        return self.divided(self.centred(vectors))

    def centred(self, vectors: Tensor) -> Tensor:
        """``(n, W)`` less the mean.

        What is averaged over residues is centred before: a sum's rounding is relative to what is summed, and the mean
        may be many deviations.
        """
        return vectors - self._on(vectors.device)[0].to(vectors.dtype)

    def divided(self, centred: Tensor) -> Tensor:
        """``(n, W)`` that was centred before, divided by the deviations."""
        std, *directions = self._on(centred.device)[1:]
        found = centred / std.to(centred.dtype)
        if not directions:
            return found
        with torch.autocast(centred.device.type, enabled=False):  # what is taken away is nearly all of some directions
            rows, factors = (each.to(found.dtype) for each in directions)
            return torch.addmm(found, (found @ rows.T) * factors, rows)

    @property
    def record(self) -> "InputScaleRecord":
        """The scale as JSON holds it; numbers of float32 come back as they were."""
        rows, factors = self.directions or (np.empty(0), np.empty(0))
        return InputScaleRecord(
            mean=tuple(self.mean.tolist()),
            std=tuple(self.std.tolist()),
            directions=base64.b64encode(rows.astype("<f4").tobytes()).decode("ascii"),
            factors=tuple(factors.tolist()),
        )

    @classmethod
    def of(cls, parts: Iterable[NDArray[np.float32]], whitened: bool = False) -> Self:
        """The scale of some vectors, given in parts of ``(n, W)``; at least one vector.

        Args:
            parts: the vectors.
            whitened: whether directions are made to vary alike, and not channels alone.
        """
        count = 0
        total, squares, shift = np.zeros(()), np.zeros(()), None
        for part in parts:
            wide = part.astype(np.float64)
            shift = wide[0] if shift is None else shift  # squares of small differences from it keep their digits
            moved = wide - shift
            count += len(wide)
            total = total + moved.sum(0)
            squares = squares + (moved.T @ moved if whitened else (moved**2).sum(0))
        assert shift is not None, "a training part has vectors"
        mean = total / count
        squares = squares / count - (np.outer(mean, mean) if whitened else mean**2)
        variance = np.diagonal(squares) if whitened else squares
        std = np.maximum(np.sqrt(np.maximum(variance, 0.0)), _LEAST)
        directions = None
        if whitened:
            directions, level = _directions(squares / np.outer(std, std), count)
            std = std * level
        return cls((shift + mean).astype(np.float32), std.astype(np.float32), directions)


@dataclass(frozen=True, kw_only=True, slots=True)
class InputScaleRecord:
    """An `InputScale` in run.json and in a bundle."""

    mean: tuple[float, ...]
    std: tuple[float, ...]
    directions: str
    """Base64 of ``(K, W)`` float32, little-endian; empty where channels are standardised alone."""
    factors: tuple[float, ...]

    def __post_init__(self) -> None:
        if len(self.mean) != len(self.std) or not all(value > 0 for value in self.std):
            raise ValueError("means and standard deviations of the vectors that heads read disagree")
        _ = self.scale

    @property
    def scale(self) -> InputScale:
        """The scale of which this is the record.

        Raises:
            ValueError: directions and factors disagree, or are no base64.
        """
        mean, std, factors = (np.array(each, np.float32) for each in (self.mean, self.std, self.factors))
        rows = np.frombuffer(base64.b64decode(self.directions, validate=True), "<f4")
        if rows.size != factors.size * mean.size:
            raise ValueError(f"{rows.size} numbers are no {factors.size} directions of {mean.size} channels")
        directions = rows.reshape(len(factors), len(mean)).astype(np.float32), factors
        return InputScale(mean, std, directions if len(factors) else None)


def _directions(correlation: NDArray[np.float64], count: int) -> tuple[Directions | None, float]:
    """What whitens standardised vectors, and the deviation that they are divided by before.

    A sample of few vectors has directions without any variance, and dividing by that would make noise of them. So the
    correlations are shrunk towards none, by the share of Chen et al. 2010 (doi:10.1109/TSP.2010.2053029, equation 23).

    Args:
        correlation: ``(W, W)`` of the channels.
        count: of vectors it was measured on.
    """
    variances, columns = np.linalg.eigh(correlation)
    width, trace, of_squares = len(variances), variances.sum(), (variances**2).sum()
    if trace <= 0.0:  # one vector, or equal ones
        return None, 1.0
    spread = (count + 1 - 2 / width) * (of_squares - trace**2 / width)
    share = min(1.0, ((1 - 2 / width) * of_squares + trace**2) / spread) if spread > 0 else 1.0
    share = max(share, _LEAST_SHARE)
    shrunk = (1 - share) * np.maximum(variances, 0.0) + share * trace / width
    first = max(1, width - _MOST_DIRECTIONS)  # rising, so the last ones vary most
    level = shrunk[:first].mean()
    factors = np.sqrt(level / shrunk[first:]) - 1
    rows = columns.T[first:]
    return (np.ascontiguousarray(rows, np.float32), factors.astype(np.float32)), float(np.sqrt(level))
