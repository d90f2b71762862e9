"""Early recognition: how many positives stand at the top of a ranking, exact where scores are equal.

In: labels, 0 or 1, and scores, the higher the better. Out: numbers in float64. Kept: nothing.

Where scores are equal, each value is its expected value over all orders of the equal ones, in closed form: no order of
a file can make it better. BEDROC and RIE: Truchon and Bayly 2007, doi:10.1021/ci600426e, written so that a large alpha
does not overflow. N items of which n are positive have the ratio Ra = n / N; BEDROCs of different Ra cannot be
compared.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from finetune.metrics.weighted import Floats, Order

ALPHA = 20.0
"""With this alpha 80 % of BEDROC's weight lies in the first 8 % of the ranking."""


class Enrichment(NamedTuple):
    """Positives among the first items of a ranking, beside what chance finds there."""

    factor: float
    """Share of positives among the first `items` over their share in all."""
    most: float
    """The factor of a perfect ranking."""
    items: int
    """How many items are first: the fraction of all, rounded up."""


def rie(labels: ArrayLike, scores: ArrayLike, alpha: float = ALPHA) -> float:
    """Robust initial enhancement: the mean of exp(-alpha rank / N) over positives, over that of a random order.

    Raises:
        ValueError: see `checked`.
    """
    active, ranked = checked(labels, scores)
    sizes, positives = _blocks(active, ranked)
    before = np.cumsum(sizes) - sizes
    # Sums of the geometric series over each block of ranks; what is common to them and to a random order cancels.
    decay = alpha / len(active)
    weights = np.exp(-decay * before) * -np.expm1(-decay * sizes) / sizes
    return float(weights @ positives / positives.sum() / (-np.expm1(-alpha) / len(active)))


def bedroc(labels: ArrayLike, scores: ArrayLike, alpha: float = ALPHA) -> float:
    """RIE over its range: 1 for a perfect ranking, 0 for the worst; `random_bedroc` is its value by chance.

    Raises:
        ValueError: see `checked`.
    """
    active, _ = checked(labels, scores)
    return _scaled(rie(labels, scores, alpha), float(active.mean()), alpha)


def random_bedroc(positive_ratio: float, alpha: float = ALPHA) -> float:
    """BEDROC of a ranking whose RIE is 1, the expected value of a random order."""
    return _scaled(1.0, positive_ratio, alpha)


def enrichment(labels: ArrayLike, scores: ArrayLike, fraction: float = 0.01) -> Enrichment:
    """The enrichment factor of the first `fraction` of the ranking.

    Raises:
        ValueError: see `checked`; or the fraction is outside (0, 1].
    """
    active, ranked = checked(labels, scores)
    if not 0 < fraction <= 1:
        raise ValueError(f"the fraction of an enrichment factor is {fraction!r}; it must lie in (0, 1]")
    total, positive = len(active), active.sum()
    count = int(np.ceil(fraction * total - 1e-9))  # without the term, 7 % of 100 would be 8
    found = _found(active, ranked, count)
    ratio = positive / total
    return Enrichment(float(found / count / ratio), float(min(positive, count) / count / ratio), count)


def top_recall(truth: ArrayLike, scores: ArrayLike, fraction: float = 0.1) -> float:
    """Share of the truly best `fraction` that is among the best-scored `fraction`, as in ProteinGym.

    The truly best are at least the percentile. As many are taken by score as lie above the percentile of distinct
    scores; where ProteinGym takes all that equal it, and finds everything with a constant score, this takes a share.

    Raises:
        ValueError: there are fewer than two items, or one is not finite.
    """
    best, ranked = np.asarray(truth, np.float64), np.asarray(scores, np.float64)
    if len(best) < 2 or not (np.isfinite(best).all() and np.isfinite(ranked).all()):
        raise ValueError(f"top recall needs two or more items, all of them finite; got {len(best)}")
    active = (best >= np.quantile(best, 1 - fraction)).astype(np.float64)
    count = len(best) - int(np.ceil((1 - fraction) * (len(best) - 1) - 1e-9))
    return float(_found(active, ranked, count) / active.sum())


def top_gain(truth: ArrayLike, scores: ArrayLike, fraction: float = 0.1) -> float:
    """NDCG of the best-scored `fraction`, rounded down, as in ProteinGym: gains are `truth` scaled to 0..1.

    Args:
        truth: (items,) that vary.
        scores: (items,).
        fraction: of the items; at least one.
    """
    from sklearn.metrics import ndcg_score

    gains, ranked = np.asarray(truth, np.float64), np.asarray(scores, np.float64)
    gains = (gains - gains.min()) / np.ptp(gains)  # scikit-learn refuses gains below 0
    return float(ndcg_score(gains[None], ranked[None], k=int(len(gains) * fraction + 1e-9)))


def checked(labels: ArrayLike, scores: ArrayLike) -> tuple[Floats, Floats]:
    """Both as float64.

    Raises:
        ValueError: a label is neither 0 nor 1, all labels are equal, a score is not finite, or the lengths differ.
    """
    active, ranked = np.asarray(labels, np.float64), np.asarray(scores, np.float64)
    if active.shape != ranked.shape or active.ndim != 1:
        raise ValueError(f"labels have the shape {active.shape} and scores {ranked.shape}; both must be (items,)")
    if not np.isin(active, (0.0, 1.0)).all():
        wrong = active[~np.isin(active, (0.0, 1.0))][0]
        raise ValueError(f"a label is {wrong:g}; it must be 0 or 1, and a missing one must be left out")
    if not np.isfinite(ranked).all():
        raise ValueError(f"a score is {ranked[~np.isfinite(ranked)][0]:g}; a finite number is needed")
    if len(np.unique(active)) < 2:
        of = f"all of the {len(active)} labels are {active[0]:g}" if len(active) else "there is no label"
        raise ValueError(f"{of}; a ranking of positives needs both 0 and 1")
    return active, ranked


def _scaled(value: float, ratio: float, alpha: float) -> float:
    least = (np.exp(-alpha * (1 - ratio)) - np.exp(-alpha)) / (ratio * -np.expm1(-alpha))
    most = np.expm1(-alpha * ratio) / (ratio * np.expm1(-alpha))
    return float((value - least) / (most - least))


def _blocks(active: Floats, scores: Floats) -> tuple[Floats, Floats]:
    """Sizes of the blocks of equal scores, best first, and the positives of each."""
    order = Order(-scores)
    return order.sums(np.ones(len(scores))), order.sums(active)


def _found(active: Floats, scores: Floats, count: int) -> float:
    """Expected number of positives among the `count` best-scored items; of the last block, its share."""
    sizes, positives = _blocks(active, scores)
    taken = np.clip(count - (np.cumsum(sizes) - sizes), 0, sizes)
    return float(taken / sizes @ positives)
