"""Predictions: numbers in the task's scale, probabilities of classes.

In: what a model gives each target. Out: float64 on the host. Kept: nothing.
"""

import numpy as np
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
    kind = objective.settings.kind
    found: NDArray[np.float64] = kind.activate(numbers.detach().cpu().double()).numpy()
    if kind.is_number and kind.standardizes:
        of = outputs.cpu().numpy()
        found = found * objective.std[of] + objective.mean[of]
    return np.asarray(found, np.float64)
