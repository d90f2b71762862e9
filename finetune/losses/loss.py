"""The loss of one task: a sum over its targets, which the step divides, once, by their number in all processes.

In: numbers of a head, labels, columns of targets. Out: a sum, () float32. Kept: constants of the task, by device.

Numbers: squared errors in standard deviations of the training labels, bounds among them. Classes: nats. Ordered
classes: cumulative logits, or proportional odds (McCullagh, 1980). Shapes: n targets, C classes.
"""

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from finetune.labels.columns import LabelColumns
from finetune.tasks.constants import DeviceConstants
from finetune.tasks.task import Task

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


def focal(losses: Tensor) -> Tensor:
    """Negative log-likelihoods, each times ``(1 - p)²`` of its likelihood p (Lin et al., arXiv:1708.02002, gamma 2)."""
    return torch.expm1(-losses).square() * losses


def balanced(class_counts: NDArray[np.int64]) -> NDArray[np.float64]:
    """Weight of each class of each task, ``(O, C)``, by its inverse frequency among the training labels.

    All labels of a class weigh together as much as those of another, and a label weighs 1 on average, so that no task
    counts more because it is uneven. Of two classes, the ratio of weights is what torch calls `pos_weight`. A class
    without training labels weighs 1.
    """
    counts = class_counts.astype(np.float64)
    classes, total = (counts > 0).sum(1, keepdims=True), counts.sum(1, keepdims=True)
    weights = total / (np.maximum(classes, 1) * np.where(counts > 0, counts, 1))
    return np.where(counts > 0, weights, 1.0)


class TaskLoss:
    """The loss sum of an objective."""

    def __init__(self, objective: Task) -> None:
        self.kind = objective.settings.kind
        self._on = DeviceConstants(objective.mean, objective.std, balanced(objective.class_counts))

    def __call__(self, numbers: Tensor, labels: Tensor, columns: LabelColumns) -> Tensor:
        """The sum over targets; 0 without any, and tied to `numbers` also then.

        Args:
            numbers: ``(n,)``, ``(n, C)`` or ``(n, C - 1)``, what the head gives each target.
            labels: ``(n,)`` float32: numbers in the task's scale, or indices of classes.
            columns: ``outputs`` and ``censoring`` are read.
        """
        return self.of_each(numbers, labels, columns).sum()

    def of_each(self, numbers: Tensor, labels: Tensor, columns: LabelColumns) -> Tensor:
        """The loss of each target, ``(n,)``, weighted."""
        kind, (mean, std, class_weights) = self.kind, self._on(numbers.device)
        if kind.is_number:
            if kind.standardizes:
                labels = (labels.double() - mean[columns.outputs]) / std[columns.outputs]
            return kind.loss(numbers, labels.to(numbers.dtype), columns.censoring)
        losses, imbalance = kind.loss(numbers, labels, columns.censoring), kind.settings.imbalance
        if imbalance == "focal":
            return focal(losses)
        if imbalance == "pos_weight":
            return losses * class_weights[columns.outputs, labels.long()].to(losses.dtype)
        return losses
