"""Losses of numbers, in units of the training labels' standard deviation.

In: predicted z-scores, z-scores of labels, which labels are bounds. Out: the loss of each target. Kept: nothing.
"""

import torch
from torch import Tensor

SCALE = 0.5
"""Error that is expected of a prediction, in standard deviations of the training labels. It decides only how wide the
region is between a bound that is kept and one that is broken."""


def squared(predicted: Tensor, labels: Tensor, censoring: Tensor) -> Tensor:
    """Squared error, or where a label is a bound, what corresponds to it; ``(n,)``.

    With a Gaussian error of standard deviation `SCALE`, the squared error is ``2 SCALE²`` times the negative
    log-likelihood of an exact label, apart from a constant. A bound's is ``-log Phi(side (predicted - bound) / SCALE)``
    (Tobin, 1958, doi:10.2307/1907382), and it is multiplied by the same factor. So a prediction that is far on the
    wrong side of a bound pays the squared distance to it, one far on the right side nothing.

    Args:
        predicted: ``(n,)`` z-scores.
        labels: ``(n,)`` z-scores of labels or bounds.
        censoring: ``(n,)`` integers: 0 exact, -1 the true value is below the label, 1 it is above.
    """
    error = predicted - labels
    # In float64: the float32 gradient of log_ndtr is wrong by whole numbers from 1e4 scales on.
    inside = torch.special.log_ndtr((censoring * error / SCALE).double()).to(error.dtype)
    return torch.where(censoring == 0, error.square(), -2 * SCALE**2 * inside)
