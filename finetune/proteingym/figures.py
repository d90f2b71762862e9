"""How well scores rank an assay, as ProteinGym measures it, and the mean over assays as ProteinGym forms it.

In: measurements and scores of one assay; figures of all assays. Out: numbers. Kept: nothing.

The definitions are those of ProteinGym's program: Spearman; AUC and MCC against ``DMS_score_bin``, the latter of scores
cut at their median; NDCG of the first 10 %, measurements scaled to 0..1; the share of the truly best 10 % among the
best-scored 10 %. Where scores are equal, NDCG and recall are means over the orders of the equal ones, so that no order
of a file makes them better.
"""

import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
from scipy.stats import spearmanr
from sklearn.metrics import matthews_corrcoef, roc_auc_score

from finetune.metrics.enrichment import top_gain, top_recall
from finetune.metrics.weighted import Floats
from finetune.proteingym.reference import Assay

NAN = float("nan")
Figures = dict[str, float]
"""How well scores rank one assay, by the names in `TITLES`, NaN for what is not defined on it; and "variants", how
many have a score and a measurement."""
TITLES = {"spearman": "Spearman", "auc": "AUC", "mcc": "MCC", "ndcg": "NDCG@10%", "recall": "recall@10%"}
"""Heading of each figure."""
_FEWEST = 10
"""A tenth of fewer is no variant."""


def figures_of(measured: Floats, is_fit: Floats, scores: Floats) -> Figures:
    """The figures of one assay.

    Args:
        measured: (variants,) DMS_score; NaN where there is none.
        is_fit: (variants,) DMS_score_bin, 0 or 1; NaN where there is none.
        scores: (variants,) of a model, higher for fitter; NaN where there is none.
    """
    known = np.isfinite(measured) & np.isfinite(scores)
    truth, ranked, count = measured[known], scores[known], int(known.sum())
    spearman = auc = mcc = ndcg = recall = NAN
    if count > 1 and np.ptp(truth):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # constant scores have no correlation: NaN
            spearman = float(spearmanr(truth, ranked).statistic)
        recall = top_recall(truth, ranked)
        ndcg = top_gain(truth, ranked) if count >= _FEWEST else NAN
    binned = np.isfinite(is_fit) & np.isfinite(scores)
    labels, ranked = is_fit[binned] > 0, scores[binned]
    if labels.any() and not labels.all():
        auc = float(roc_auc_score(labels, ranked))
        mcc = float(matthews_corrcoef(labels, ranked >= np.median(ranked)))
    return {"variants": count, "spearman": spearman, "auc": auc, "mcc": mcc, "ndcg": ndcg, "recall": recall}


@dataclass(frozen=True, slots=True)
class MeanScores:
    """One figure over many assays; NaN where there is nothing to average."""

    aggregate: float
    """Mean over types of selection of the mean over proteins of the mean over a protein's assays of that type."""
    of_selection: Mapping[str, float]
    """Type of selection -> mean over its proteins."""
    of_assays: float
    """Plain mean over assays."""
    assays: int
    """How many assays define it; the others are in no mean."""


def means(values: Iterable[tuple[Assay, float]]) -> MeanScores:
    """The means of one figure, as ProteinGym forms them: over the assays of a protein within a type of selection first.

    Proteins with many assays, and types with many proteins, count no more than others.
    """
    of_protein: dict[str, dict[str, list[float]]] = {}
    every: list[float] = []
    for assay, value in values:
        if np.isfinite(value):
            of_protein.setdefault(assay.selection, {}).setdefault(assay.protein, []).append(value)
            every.append(value)
    of_selection = {
        selection: float(np.mean([np.mean(own) for own in proteins.values()]))
        for selection, proteins in sorted(of_protein.items())
    }
    if not every:
        return MeanScores(NAN, {}, NAN, 0)
    return MeanScores(float(np.mean(list(of_selection.values()))), of_selection, float(np.mean(every)), len(every))
