"""Precision of predicted contacts at long range, and its interval over chains that are relatives or not.

In: probabilities of pairs, and which pairs touch. Out: P@L, P@L/2, P@L/5 of a chain; means over chains with intervals.
Nothing is kept.

P@L is the share of contacts among the L most probable pairs at a separation of 24 and more, where L is the number of
residues whose places are known. A chain without a contact at long range has no precision: it is counted, and left out.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from pretrain.contacts.chains import Chain
from pretrain.evaluation.contact_figures import ConfidenceInterval
from pretrain.evaluation.evaluate import intervals

SEPARATION = 6
"""Pairs nearer than this along the chain touch whatever the fold, and are neither fitted nor scored."""
LONG_RANGE = 24
"""Separation along the chain from which on a contact says something of the fold."""
SHARES = {"P@L": 1, "P@L/2": 2, "P@L/5": 5}
"""Name of each precision -> divisor of L."""


def pairs_of(chain: Chain, separation: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Places (pairs,) of the first and of the second residue of each pair whose places are known, by rows."""
    first, second = np.triu_indices(len(chain.residues), separation)
    known = chain.is_resolved
    both = known[first] & known[second]
    return first[both], second[both]


def precisions(chain: Chain, probabilities: NDArray[np.float64]) -> dict[str, float] | None:
    """The precisions of one chain, and `chance`: the share of contacts among all pairs at long range.

    Args:
        chain: whose contacts are the truth.
        probabilities: ``(L, L)``, or anything that rises with them. Equal ones count as in the mean over all orders, so
            that a model which says the same of all pairs has the precision of chance.

    Returns:
        None where no pair at long range touches.
    """
    pairs = pairs_of(chain, LONG_RANGE)
    touching = chain.contacts[pairs]
    if not touching.any():
        return None
    ordered = np.argsort(-probabilities[pairs], kind="stable")
    best, values = touching[ordered], probabilities[pairs][ordered]
    length = int(chain.is_resolved.sum())
    found = {name: _share_of(best, values, length // divisor) for name, divisor in SHARES.items()}
    return found | {"chance": float(touching.mean())}


def _share_of(touching: NDArray[np.bool_], values: NDArray[np.float64], count: int) -> float:
    """Share of contacts among the first `count` pairs, by falling value; the mean over all orders of equal values."""
    count = min(max(count, 1), len(values))
    last = values[count - 1]
    above = int((values > last).sum())
    equal = touching[above : above + int((values == last).sum())]
    return float((touching[:above].sum() + (count - above) * equal.mean()) / count)


def interval(values: Sequence[float], groups: Sequence[int]) -> ConfidenceInterval:
    """Mean over chains, with the interval of the bootstrap by group: relatives are drawn together.

    Davison and Hinkley 1997, section 3.8.

    Args:
        values: (chains,) a number for each.
        groups: (chains,) a number that relatives share.
    """
    of_chain = np.array(values)
    _, group = np.unique(groups, return_inverse=True)
    low, high, *_ = intervals(np.column_stack([of_chain, of_chain, np.ones(len(of_chain))]), group)
    return ConfidenceInterval(float(of_chain.mean()), low, high)
