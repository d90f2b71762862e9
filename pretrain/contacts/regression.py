"""The regression that reads contacts from attention maps, as ESM-2's authors fit it.

In: maps and contacts of some chains. Out: a contact head, and what it predicts. Nothing is kept.

A logistic regression with an L1 penalty, C = 0.15, on all pairs at a separation of 6 or more, of 20 chains (Rao et al.,
2021, doi:10.1101/2020.12.15.422761, appendix A.7, and the program that its authors published later).
"""

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from pretrain.contacts.attention import columns_at
from pretrain.contacts.chains import Chain
from pretrain.contacts.precision import SEPARATION, pairs_of
from pretrain.model.weights.contact_head import ContactHead

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
