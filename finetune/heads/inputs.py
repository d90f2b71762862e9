"""The scale of what a head reads: mean and standard deviation of each channel over the training part.

In: vectors. Out: the same, standardised. Kept: constants, by device.

Vectors of variants of one protein differ by a thousandth of their length. A head that reads them as they are has to
learn a large map before it tells any two apart; standardised, the differences are what it reads first.
"""

from collections.abc import Iterable, Mapping
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

_LEAST = 1e-6
"""Smallest standard deviation that is divided by."""


class InputScale:
    """What is subtracted from each channel, and what it is divided by.

    Args:
        mean: ``(W,)`` float32.
        std: ``(W,)`` float32, above 0.
    """

    def __init__(self, mean: NDArray[np.float32], std: NDArray[np.float32]) -> None:
        self.mean, self.std = mean, std
        self._constants: dict[torch.device, tuple[Tensor, Tensor]] = {}

    def __call__(self, vectors: Tensor) -> Tensor:
        """Standardise ``(n, W)``; the dtype stays."""
        if vectors.device not in self._constants:
            constants = torch.from_numpy(self.mean), torch.from_numpy(self.std)
            self._constants[vectors.device] = constants[0].to(vectors.device), constants[1].to(vectors.device)
        mean, std = self._constants[vectors.device]
        return (vectors - mean.to(vectors.dtype)) / std.to(vectors.dtype)

    def as_dict(self) -> dict[str, list[float]]:
        """For run.json and a bundle; numbers of float32 come back as they were."""
        return {"mean": self.mean.tolist(), "std": self.std.tolist()}

    @classmethod
    def from_dict(cls, described: Mapping[str, Any]) -> Self:
        """The scale that `as_dict` described."""
        return cls(np.array(described["mean"], np.float32), np.array(described["std"], np.float32))

    @classmethod
    def of(cls, parts: Iterable[NDArray[np.float32]]) -> Self:
        """The scale of some vectors, given in parts of ``(n, W)``; at least one vector."""
        count, total, squares = 0, 0.0, 0.0
        shift: NDArray[np.float64] | None = None
        for part in parts:
            wide = part.astype(np.float64)
            shift = wide[0] if shift is None else shift  # squares of small differences from it keep their digits
            count += len(wide)
            total = total + (wide - shift).sum(0)
            squares = squares + ((wide - shift) ** 2).sum(0)
        assert shift is not None, "a training part has vectors"
        mean = total / count
        std = np.sqrt(np.maximum(squares / count - mean**2, 0.0))
        return cls((shift + mean).astype(np.float32), np.maximum(std, _LEAST).astype(np.float32))
