"""Learned weights of objectives, by what each leaves unexplained (Kendall et al., 2018, arXiv:1705.07115).

In: loss sums and counts of targets. Out: weighted sums. Kept: a log-variance for each objective.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn


class LearnedBalance(nn.Module):
    """``exp(-s) S + n s / 2`` for an objective with loss sum S over n targets and learned s.

    Both terms carry n, so that after the step's division by all targets they are ``exp(-s)`` times the mean loss, plus
    ``s / 2``. An objective without a target in the step adds neither: were the second term added for it too, s would
    fall without end.
    """

    def __init__(self, objectives: int) -> None:
        """Every weight is 1 until it is learned."""
        super().__init__()
        self.log_variance = nn.Parameter(torch.zeros(objectives))

    def forward(self, sums: Tensor, counts: Sequence[int]) -> Tensor:
        """Loss sums ``(objectives,)`` and their numbers of targets to weighted sums ``(objectives,)``."""
        s = self.log_variance.to(sums.dtype)
        halves = [one * (count / 2) for one, count in zip(s.unbind(), counts, strict=True)]
        return torch.exp(-s) * sums + torch.stack(halves)
