"""Losses of classes, in nats.

In: logits and classes of targets. Out: the loss of each target. Kept: nothing.

Shapes: n targets, C classes.
"""

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor


def binary(logits: Tensor, labels: Tensor) -> Tensor:
    """Cross-entropy of a logit ``(n,)`` of yes and labels ``(n,)``, 0 or 1; each column of a multilabel task has it."""
    return F.binary_cross_entropy_with_logits(logits, labels.to(logits.dtype), reduction="none")


def multiclass(logits: Tensor, labels: Tensor) -> Tensor:
    """Cross-entropy over all classes of logits ``(n, C)`` and labels ``(n,)``, indices of classes.

    A class without training labels stays in the softmax, and learns that it is never right. Were it taken out, a label
    of that class outside of the training part would have an infinite loss, and a program that takes the largest of the
    exported logits would choose the class by chance.
    """
    return F.cross_entropy(logits, labels.long(), reduction="none")


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
