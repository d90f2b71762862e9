"""Regression: a label is a number, or a bound of one.

In: numbers. Out: losses, predictions, metrics. Kept: nothing.
"""

import warnings
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from finetune.labels.labels import BELOW, EXACT
from finetune.metrics import weighted
from finetune.metrics.enrichment import enrichment_metrics, top_gain, top_recall
from finetune.metrics.predictions import OutputRows
from finetune.metrics.scores import FEWEST_LABELS
from finetune.metrics.weighted import Floats, Metric, of_all
from finetune.task_types.task_type import TaskType
from finetune.tasks.task import Scale

if TYPE_CHECKING:
    from torch import Tensor


class Regression(TaskType):
    """Squared errors of z-scores; ranked by Spearman's correlation, or with bounds by concordance."""

    is_number = True
    transformers_problem = "regression"

    def loss(self, numbers: "Tensor", labels: "Tensor", censoring: "Tensor") -> "Tensor":
        """Return squared errors, and what corresponds to them for bounds."""
        from finetune.losses.loss import squared

        return squared(numbers, labels, censoring)

    def activate(self, numbers: "Tensor") -> "Tensor":
        """Return z-scores as they are."""
        return numbers

    def metric(self, truth: Floats, ranks: Floats, censoring: NDArray[np.int8]) -> Metric:
        """Return Spearman's correlation of exact numbers, or concordance."""
        if (censoring == EXACT).all():
            return Metric("spearman", 0.0, weighted.spearman(truth, ranks))
        return Metric("concordance", 0.5, weighted.concordance_statistic(truth, censoring, ranks), len(truth))

    def other_metrics(self, rows: OutputRows, notes: list[str]) -> dict[str, float]:
        """Return metrics of exact numbers, and with `active_from` those of active ones."""
        truth, ranks, censoring = rows.truth, rows.ranks, rows.censoring
        exact, active_from = censoring == EXACT, self.settings.active_from
        values = _of_exact(rows.task.scale, truth[exact], rows.prediction[exact], ranks[exact])
        if not exact.all():
            values["comparable_pairs"] = float(weighted.concordance(truth, censoring, ranks)[1])
        if active_from is None:
            return values
        # `>7` is active above a threshold of 6, and `<5` is not; `<7` may be either.
        active = (truth >= active_from) & (censoring != BELOW)
        known = (censoring == EXACT) | active | ((censoring == BELOW) & (truth <= active_from))
        if unclear := int((~known).sum()):
            notes.append(f"{unclear} bounds do not show whether the value is at least {active_from:g}: not in AUROC")
        if 0 < active.sum() < known.sum():
            return values | enrichment_metrics(active[known], ranks[known])
        none = "every" if active.any() else "no"
        notes.append(f"{none} label is at least {active_from:g}: no AUROC, AP or enrichment")
        return values


def _of_exact(scale: Scale, truth: Floats, prediction: Floats, ranks: Floats) -> dict[str, float]:
    """Metrics of exact values; those of the order alone where there are enough that vary."""
    from scipy import stats

    if not len(truth):
        return {}
    values = {"rmse": float(np.sqrt(np.mean((prediction - truth) ** 2)))}
    if scale.is_logarithm:
        with np.errstate(over="ignore", invalid="ignore"):
            error = float(np.sqrt(np.mean((scale.undone(prediction) - scale.undone(truth)) ** 2)))
        if np.isfinite(error):
            values["rmse_unit"] = error
    if len(truth) < FEWEST_LABELS or (truth == truth[0]).all():
        return values
    varies = bool((prediction != prediction[0]).any())
    values["spearman"] = of_all(weighted.spearman(truth, ranks), len(truth))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", stats.NearConstantInputWarning)
        pearson = float(stats.pearsonr(truth, prediction).statistic) if varies else 0.0
    values["pearson"] = pearson if np.isfinite(pearson) else 0.0
    values["ndcg_10"] = top_gain(truth, ranks)
    values["top_10_recall"] = top_recall(truth, ranks)
    return values
