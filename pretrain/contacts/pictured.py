"""One chain's contacts beside those that a model predicts, small enough for a file and a picture.

In: a chain, probabilities of its pairs. Out: `ContactPairs`. Kept: nothing.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from pretrain.contacts.chains import Chain
from pretrain.contacts.precision import SEPARATION, pairs_of
from pretrain.evaluation.contact_figures import ContactPairs


def median_chain(values: Sequence[float]) -> int:
    """The place of a value in the middle of all: the lower one of two."""
    return int(np.argsort(values, kind="stable")[(len(values) - 1) // 2])


def contact_pairs(chain: Chain, probabilities: NDArray[np.float64]) -> ContactPairs:
    """The picture of a chain.

    Args:
        chain: whose contacts are the truth.
        probabilities: ``(L, L)``, or anything that rises with them.
    """
    pairs = pairs_of(chain, SEPARATION)
    both = np.stack(pairs, 1)
    best = np.argsort(-probabilities[pairs], kind="stable")[: int(chain.is_resolved.sum())]
    touching, predicted = (
        tuple((int(i), int(j)) for i, j in some) for some in (both[chain.contacts[pairs]], both[best])
    )
    return ContactPairs(chain.name, len(chain.residues), touching, predicted)
