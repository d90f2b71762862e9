"""Predictions: numbers in the task's scale, probabilities of classes.

In: what a model gives each target. Out: float64 on the host. Kept: nothing.
"""

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from finetune.tasks.task import Task


def activate(objective: Task, numbers: Tensor, outputs: Tensor) -> NDArray[np.float64]:
    """Predictions of n targets.

    Args:
        objective: whose head gave the numbers.
        numbers: what `FineTuneModel` gives n targets where each is asked for.
        outputs: ``(n,)`` which task each target is of.

    Returns:
        ``(n,)``: numbers in the task's scale, where z-scores are undone, or the probability of yes; ``(n, C)``
        probabilities of C classes for multiclass and ordinal tasks.
    """
    wide = numbers.detach().cpu().double()
    kind = objective.settings.type
    if kind == "regression":
        of = outputs.cpu().numpy()
        return np.asarray(wide.numpy() * objective.std[of] + objective.mean[of], np.float64)
    if kind == "multiclass":
        wide = wide.softmax(1)
    elif kind == "ordinal":  # differences of the probabilities of lying above each threshold
        above = F.pad(wide, (1, 0), value=torch.inf)
        above = F.pad(above, (0, 1), value=-torch.inf).sigmoid()
        wide = above[:, :-1] - above[:, 1:]
    else:
        wide = wide.sigmoid()
    return np.asarray(wide.numpy(), np.float64)
