"""The contact head of an ESM-2: a logistic regression on its attention maps, which transformers' class carries along.

In: tensors of an `EsmForMaskedLM`. Out: a `ContactHead`, which is an entry of checkpoints, and tensors. Kept: nothing.

It is fitted on structures after pretraining (Rao et al., 2021, doi:10.1101/2020.12.15.422761) and does not take part in
training: what is fitted goes with the weights from where a run starts to what it exports.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

WEIGHT = "esm.contact_head.regression.weight"
"""``(1, layers * heads)`` in transformers' class: a factor for each attention map, layer by layer."""
BIAS = "esm.contact_head.regression.bias"
"""``(1,)`` there."""


@dataclass(frozen=True, slots=True)
class ContactHead:
    """A contact head: values of float32, which Python's floats hold without loss."""

    weight: tuple[float, ...]
    """Factor of each attention map, layer by layer: ``layers * heads`` of them."""
    bias: float
    """Log-odds of a contact where every map is 0."""

    @classmethod
    def of_state(cls, state: Mapping[str, Tensor]) -> Self | None:
        """The head in a state dict of transformers' class; None where there is none, or zeros, which nobody fitted."""
        if WEIGHT not in state or not (state[WEIGHT].any() or state[BIAS].any()):
            return None
        weight, bias = (state[name].float().flatten().tolist() for name in (WEIGHT, BIAS))
        return cls(tuple(weight), *bias)

    def state(self) -> dict[str, Tensor]:
        """Its tensors by transformers' names, float32 on the host."""
        return {WEIGHT: torch.tensor([self.weight]), BIAS: torch.tensor([self.bias])}


def zeros(maps: int) -> dict[str, Tensor]:
    """The tensors of a head that nobody fitted: every contact is 0.5, while random ones would look like predictions."""
    return {WEIGHT: torch.zeros(1, maps), BIAS: torch.zeros(1)}
