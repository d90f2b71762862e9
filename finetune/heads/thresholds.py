"""Ordered thresholds: one score a place becomes the cumulative logits of ordered classes (McCullagh, 1980).

In: scores. Out: for each threshold, the logit of lying above it. Kept: the distances of neighbouring thresholds.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

LEAST_GAP = 1e-3
"""Least distance of two thresholds, so that no class between them has a probability of 0 in float32."""


class OrderedThresholds(nn.Module):
    """C - 1 thresholds for each of O tasks, ascending whatever the parameters are.

    Their mean is 0: where they lie as a whole is for the head's bias. So two classes need no parameter.
    """

    def __init__(self, outputs: int, classes: int) -> None:
        """Equal distances until they are learned."""
        super().__init__()
        self.shape = outputs, classes - 2
        if classes > 2:  # an engine would get a parameter of no elements
            self.gaps = nn.Parameter(torch.zeros(outputs * (classes - 2)))

    def forward(self, scores: Tensor, outputs: Tensor) -> Tensor:
        """Scores ``(n,)`` of the tasks `outputs` ``(n,)`` int64 to logits ``(n, C - 1)``, descending.

        The k-th one, from 0, is of the event that the class is above k: score minus threshold.
        """
        if not self.shape[1]:
            return scores[:, None]
        gaps = F.softplus(self.gaps.view(self.shape)) + LEAST_GAP
        thresholds = F.pad(gaps.cumsum(1), (1, 0))
        thresholds = thresholds - thresholds.mean(1, keepdim=True)
        return scores[:, None] - thresholds.to(scores.dtype)[outputs]
