"""A type of tasks: counts, such as reads of a variant, with a Poisson loss. A recipe's task names it counts:Counts."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch.nn.functional as F
from numpy.typing import NDArray
from scipy.special import xlogy
from torch import Tensor

from finetune.labels.locate import ColumnCells
from finetune.metrics.weighted import Floats, Metric
from finetune.task_types.task_type import ParsedLabels, TaskType
from finetune.tasks.cells import NonEmptyCells
from finetune.tasks.task import Task
from zymogen.settings.section import IDENTITY, Section, setting


@dataclass(frozen=True, kw_only=True, slots=True)
class CountsOptions(Section):
    """Settings of this type."""

    section: ClassVar = "options"
    least: float = setting(IDENTITY, "lowest rate that is predicted", 0.01, above=0)


class Counts(TaskType):
    """A head gives the logarithm of the rate."""

    Options = CountsOptions
    options: CountsOptions
    is_number = True
    standardizes = False  # a z-score of a count is no count

    def parse(
        self, columns: Sequence[ColumnCells], placed: Sequence[NonEmptyCells], decimal: str, said: list[str]
    ) -> ParsedLabels:
        """Refuse numbers below 0."""
        labels = super().parse(columns, placed, decimal, said)
        for column, cells, values in zip(columns, placed, labels.values, strict=True):
            if (values < 0).any():
                row = int(cells.rows[np.argmax(values < 0)])
                raise ValueError(f"{column.where(row)}: a count is below 0; correct it")
        return labels

    def loss(self, numbers: Tensor, labels: Tensor, censoring: Tensor) -> Tensor:
        """Return the negative log-likelihoods, without the part that no weight changes."""
        return F.poisson_nll_loss(numbers, labels, log_input=True, reduction="none")

    def activate(self, numbers: Tensor) -> Tensor:
        """Return rates."""
        return numbers.exp().clamp(min=self.options.least)

    def metric(self, truth: Floats, ranks: Floats, censoring: NDArray[np.int8]) -> Metric:
        """Return the share of the deviance that is explained: 0 for the mean, 1 at best."""
        labels, rates = truth[:, None], np.maximum(ranks, self.options.least)[:, None]

        def statistic(weights: Floats) -> Floats:
            def deviance(of: Floats) -> Floats:
                return np.asarray((weights * (xlogy(labels, labels / of) - labels + of)).sum(0))

            mean = np.maximum((weights * labels).sum(0) / weights.sum(0), self.options.least)
            return np.asarray(1 - deviance(rates) / deviance(mean[None]))

        return Metric("deviance_explained", 0.0, statistic)

    def relative(self, task: Task, outputs: NDArray[np.int64], prediction: Floats) -> Floats:
        """Return rates as they are: this metric does not rank."""
        return prediction
