"""The loss of one objective: a sum over its targets, which the step divides, once, by their number in all processes.

In: numbers of a head, labels, columns of targets. Out: a sum, () float32. Kept: constants of the objective, by device.
"""

from torch import Tensor

from finetune.labels.columns import LabelColumns
from finetune.losses.classes import balanced, binary, focal, multiclass
from finetune.losses.ordinal import cumulative
from finetune.losses.regression import squared
from finetune.tasks.constants import DeviceConstants
from finetune.tasks.objective import Task


class TaskLoss:
    """The loss sum of an objective."""

    def __init__(self, objective: Task) -> None:
        self.objective = objective
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
        task, (mean, std, class_weights) = self.objective.settings, self._on(numbers.device)
        if task.type == "regression":
            scored = ((labels.double() - mean[columns.outputs]) / std[columns.outputs]).to(numbers.dtype)
            return squared(numbers, scored, columns.censoring)
        losses = {"multiclass": multiclass, "ordinal": cumulative}.get(task.type, binary)(numbers, labels)
        if task.imbalance == "focal":
            return focal(losses)
        if task.imbalance == "pos_weight":
            return losses * class_weights[columns.outputs, labels.long()].to(losses.dtype)
        return losses
