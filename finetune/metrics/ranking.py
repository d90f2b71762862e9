"""The ranking metric of a task, which follows from its type.

In: what was measured, and the numbers that rank it. Out: the name of the metric, and a `Statistic`. Kept: nothing.
Validations, full scores and comparisons of two models take the same.
"""

import numpy as np
from numpy.typing import NDArray

from finetune.labels.labels import EXACT
from finetune.metrics import concordance, weighted
from finetune.metrics.weighted import Floats, Statistic
from finetune.tasks.settings import TaskType


def ranking_metric(
    kind: TaskType, truth: Floats, ranks: Floats, censoring: NDArray[np.int8] | None = None
) -> tuple[str, Statistic]:
    """Name of the metric, and the metric of weighted rows; they are of one output.

    Args:
        kind: type of the task.
        truth: (n,) numbers, ones and zeros, or indices of classes.
        ranks: (n,) what orders the rows, rising with the truth; (n, C) of classes without an order.
        censoring: (n,) which numbers are bounds; None: none.
    """
    if kind == "regression":
        if censoring is None or (censoring == EXACT).all():
            return "spearman", weighted.spearman(truth, ranks)
        return "concordance", concordance.statistic(truth, censoring, ranks)
    if kind == "ordinal":
        return "kendall", weighted.kendall(truth, ranks)
    if kind == "multiclass":
        return "macro_auroc", weighted.macro_auroc(truth, ranks, np.unique(truth).astype(np.int64))
    return "auroc", weighted.auroc(truth == 1, ranks)


def expected_class(probabilities: Floats) -> Floats:
    """(n,) the expected class of (n, C) probabilities; rounding keeps equal probabilities equal."""
    return np.asarray(np.round(probabilities @ np.arange(probabilities.shape[1]), 9))
