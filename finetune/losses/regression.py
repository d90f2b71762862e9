"""Losses of numbers, in units of the training labels' standard deviation.

In: predicted z-scores, z-scores of labels, which labels are bounds. Out: the loss of each target. Kept: nothing.
"""

import torch
from torch import Tensor


def squared(predicted: Tensor, labels: Tensor, censoring: Tensor, scale: float) -> Tensor:
    """Squared error, or where a label is a bound, what corresponds to it; ``(n,)``.

    With a Gaussian error of standard deviation `scale`, the squared error is ``2 scale²`` times the negative
    log-likelihood of an exact label, apart from a constant. A bound's is ``-log Phi(side (predicted - bound) / scale)``
    (Tobin, 1958, doi:10.2307/1907382), and it is multiplied by the same factor. So a prediction that is far on the
    wrong side of a bound pays the squared distance to it, one far on the right side nothing, and `scale` decides only
    how wide the region between the two is.

    Args:
        predicted: ``(n,)`` z-scores.
        labels: ``(n,)`` z-scores of labels or bounds.
        censoring: ``(n,)`` integers: 0 exact, -1 the true value is below the label, 1 it is above.
        scale: in standard deviations of the training labels.
    """
    error = predicted - labels
    # In float64: the float32 gradient of log_ndtr is wrong by whole numbers from 1e4 scales on.
    inside = torch.special.log_ndtr((censoring * error / scale).double()).to(error.dtype)
    return torch.where(censoring == 0, error.square(), -2 * scale**2 * inside)
