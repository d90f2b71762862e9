"""Early recognition: how many positives stand at the top of a ranking, exact where scores are equal.

In: which items are positive, some and not all of them, and finite scores, the higher the better. Out: numbers. Kept:
nothing.

Where scores are equal, each value is its expected value over all orders of the equal ones, in closed form: no order of
a file can make it better.
"""

import numpy as np
from numpy.typing import NDArray

from finetune.metrics.weighted import Floats, SortedRows


def enrichment(active: NDArray[np.bool_], scores: Floats, fraction: float = 0.01) -> tuple[float, float, int]:
    """The enrichment factor of the first `fraction` of the ranking, that of a perfect ranking, and the items of both.

    The factor is the share of positives among the first items over their share in all; the items are rounded up.
    """
    total, positive = len(active), active.sum()
    count = int(np.ceil(fraction * total - 1e-9))  # without the term, 7 % of 100 would be 8
    found = _found(active, scores, count)
    ratio = positive / total
    return float(found / count / ratio), float(min(positive, count) / count / ratio), count


def top_recall(truth: Floats, scores: Floats, fraction: float = 0.1) -> float:
    """Share of the truly best `fraction` that is among the best-scored `fraction`, as in ProteinGym.

    The truly best are at least the percentile. As many are taken by score as lie above the percentile of distinct
    scores; where ProteinGym takes all that equal it, and finds everything with a constant score, this takes a share.
    """
    active = truth >= np.quantile(truth, 1 - fraction)
    count = len(truth) - int(np.ceil((1 - fraction) * (len(truth) - 1) - 1e-9))
    return float(_found(active, scores, count) / active.sum())


def top_gain(truth: Floats, scores: Floats, fraction: float = 0.1) -> float:
    """NDCG of the best-scored `fraction`, rounded down, as in ProteinGym: gains are `truth` scaled to 0..1.

    Args:
        truth: (items,) that vary.
        scores: (items,).
        fraction: of the items; at least one.
    """
    from sklearn.metrics import ndcg_score

    gains = (truth - truth.min()) / np.ptp(truth)  # scikit-learn refuses gains below 0
    return float(ndcg_score(gains[None], scores[None], k=int(len(gains) * fraction + 1e-9)))


def enrichment_metrics(active: NDArray[np.bool_], scores: Floats) -> dict[str, float]:
    """AUROC, AP and enrichment at 1 %, each with what it depends on or what chance gives.

    Args:
        active: whether each item is positive; some, and not all.
        scores: finite, the higher the more likely positive.
    """
    from sklearn.metrics import average_precision_score, roc_auc_score

    ratio = float(active.mean())
    factor, most, items = enrichment(active, scores, 0.01)
    return {
        "auroc": float(roc_auc_score(active, scores)),
        "ap": float(average_precision_score(active, scores)),
        "positive_ratio": ratio,  # what AP is by chance
        "ef1": factor,
        "ef1_most": most,
        "ef1_items": float(items),
    }


def _blocks(active: NDArray[np.bool_], scores: Floats) -> tuple[Floats, Floats]:
    """Sizes of the blocks of equal scores, best first, and the positives of each."""
    order = SortedRows(-scores)
    return order.sums(np.ones(len(scores))), order.sums(active.astype(np.float64))


def _found(active: NDArray[np.bool_], scores: Floats, count: int) -> float:
    """Expected number of positives among the `count` best-scored items; of the last block, its share."""
    sizes, positives = _blocks(active, scores)
    taken = np.clip(count - (np.cumsum(sizes) - sizes), 0, sizes)
    return float(taken / sizes @ positives)
