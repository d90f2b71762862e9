"""The regression that reads contacts from attention maps, as ESM-2's authors fit it, and its precision.

In: maps and contacts of some chains. Out: a contact head, and what it predicts; P@L, P@L/2, P@L/5 of a chain, and means
over chains, relatives or not, with intervals. Nothing is kept.

A logistic regression with an L1 penalty, C = 0.15, on all pairs at a separation of 6 or more, of 20 chains (Rao et al.,
2021, doi:10.1101/2020.12.15.422761, appendix A.7, and the program that its authors published later).

P@L is the share of contacts among the L most probable pairs at a separation of 24 and more, where L is the number of
residues whose places are known. A chain without a contact at long range has no precision: it is counted, and left out.
"""

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from pretrain.contacts.attention import columns_at
from pretrain.contacts.chains import Chain
from pretrain.evaluate.results import ConfidenceInterval
from pretrain.evaluate.validation import intervals
from pretrain.model.weights.names import ContactHead

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


CHAINS = 20
"""Chains that the published regression was fitted on."""
PENALTY = 0.15
"""Inverse strength of the L1 penalty, scikit-learn's C."""
_MOST_STEPS = 1000


def fit(chains: Iterable[tuple[Chain, Tensor]]) -> ContactHead:
    """Fit a contact head.

    Memory: 24 bytes for each pair and map, 1.1 GB for 20 chains of 200 residues and ESM-2's 8M, 6 GB for its 650M.

    Args:
        chains: each with its maps ``(maps, L, L)``; they are read once, one at a time.

    Raises:
        ValueError: no pair of them is in contact, or every one is.
    """
    from sklearn.linear_model import LogisticRegression

    rows: list[NDArray[np.float32]] = []
    labels: list[NDArray[np.bool_]] = []
    for chain, maps in chains:
        pairs = pairs_of(chain, SEPARATION)
        rows.append(columns_at(maps, pairs))
        labels.append(chain.contacts[pairs])
    touching = np.concatenate(labels)
    if touching.all() or not touching.any():
        raise ValueError(
            f"{int(touching.sum())} of {len(touching)} pairs of residues in the chains to fit on are in contact; give "
            "more chains, or longer ones"
        )
    table = np.concatenate(rows, dtype=np.float64)  # what liblinear takes; it makes nodes of 16 bytes of it
    rows.clear()
    regression = LogisticRegression(
        C=PENALTY, l1_ratio=1.0, solver="liblinear", max_iter=_MOST_STEPS, random_state=0
    ).fit(table, touching)
    values = np.concatenate([regression.coef_[0], regression.intercept_]).astype(np.float32).tolist()
    return ContactHead(tuple(values[:-1]), values[-1])


def probabilities(head: ContactHead, maps: Tensor) -> NDArray[np.float64]:
    """Probability of a contact for each pair, ``(L, L)``, from maps ``(maps, L, L)``."""
    weight = np.array(head.weight, np.float32)
    odds = np.tensordot(weight, maps.numpy(), 1).astype(np.float64) + head.bias
    return 1 / (1 + np.exp(-odds))


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


def mean_interval(values: Sequence[float], groups: Sequence[int]) -> ConfidenceInterval:
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
