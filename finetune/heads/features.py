"""Features: vectors of a frozen encoder that were computed once, in the place of the encoder.

In: nothing; this is the protocol. Kept: nothing. `finetune.adaptation` has the cache that implements it.
"""

from typing import Protocol

from torch import Tensor


class Features(Protocol):
    """Vectors by `LabelColumns.place`, without a gradient, float32 on the device of `places`."""

    def sequence(self, places: Tensor) -> Tensor:
        """Vectors of whole sequences, pooled: ``(n,)`` int64 numbers of records to ``(n, D)``."""

    def residue(self, places: Tensor) -> Tensor:
        """Vectors of residues: ``(n,)`` int64 indices in the token store to ``(n, D)``."""
