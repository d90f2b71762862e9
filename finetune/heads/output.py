"""The last map of a head, whose results the loss is computed from.

In: vectors. Out: their map, never rounded to a lower precision than float32. Kept: the parameters.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from pretrain.model.linear import Linear


class OutputMap(Linear):
    """A linear map that is computed in float32 under autocast too; a float64 model stays float64."""

    def forward(self, x: Tensor) -> Tensor:
        """Map ``(..., in)`` to ``(..., out)``."""
        with torch.autocast(x.device.type, enabled=False):
            dtype = torch.promote_types(x.dtype, torch.float32)
            bias = None if self.bias is None else self.bias.to(dtype)
            return F.linear(x.to(dtype), self.weight.to(dtype), bias)
