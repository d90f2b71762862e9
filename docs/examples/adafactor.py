"""An optimizer that is refused: Adafactor keeps factored moments, which do not have the parameter's shape."""

from typing import Any

import torch

from zymogen.trainer.optimizer.kinds import OptimizerKind


class Adafactor(OptimizerKind):
    """A checkpoint could not hold its state."""

    def build(self, groups: list[dict[str, Any]]) -> torch.optim.Optimizer:
        """Return torch's."""
        return torch.optim.Adafactor(groups, lr=1e-3)
