"""The loss of ordered classes, in nats: cumulative logits, or proportional odds (McCullagh, 1980).

In: logits of lying above each threshold. Out: the loss of each target. Kept: nothing.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

_NEAREST = 1e-6
"""Distance below which two logits count as this far apart: scores of 1e4 round thresholds to one number."""


def cumulative(logits: Tensor, labels: Tensor) -> Tensor:
    """Negative log-likelihood of each class, ``(n,)``.

    A class lies above threshold k - 1 and not above threshold k, with logits a > b of the two events. Its probability
    is ``sigmoid(a) - sigmoid(b) = sigmoid(a) sigmoid(-b) (1 - exp(b - a))``, of which each factor has a stable
    logarithm. The lowest class has no a, the highest no b.

    Args:
        logits: ``(n, C - 1)``, descending.
        labels: ``(n,)`` indices of classes.
    """
    classes = labels.long()
    has_lower, has_upper = classes > 0, classes < logits.shape[1]
    lower = logits.gather(1, (classes - 1).clamp(min=0)[:, None])[:, 0]
    upper = logits.gather(1, classes.clamp(max=logits.shape[1] - 1)[:, None])[:, 0]
    # A class with one threshold alone has one logit for both; the clamp keeps the gradient finite there too.
    between = torch.log(-torch.expm1(-(lower - upper).clamp(min=_NEAREST)))
    zero = torch.zeros_like(lower)
    return (
        torch.where(has_lower, F.softplus(-lower), zero)
        + torch.where(has_upper, F.softplus(upper), zero)
        - torch.where(has_lower & has_upper, between, zero)
    )
