"""One chain's contacts beside those that a model predicts, small enough for a file and a picture.

In: a chain, probabilities of its pairs. Out: `Pictured`. Kept: nothing.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pretrain.contacts.chains import Chain
from pretrain.contacts.precision import SEPARATION, pairs_of

Pairs = tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class Pictured:
    """The contacts of a chain at a separation of 6 and more; residues from 0, the first of a pair before the second."""

    name: str
    residues: int
    touching: Pairs
    """Pairs that touch."""
    predicted: Pairs
    """The most probable pairs, as many as there are residues whose places are known, by falling probability."""

    def as_dict(self) -> dict[str, Any]:
        """The fields by name."""
        return asdict(self)


def typical(values: Sequence[float]) -> int:
    """The place of a value in the middle of all: the lower one of two."""
    return int(np.argsort(values, kind="stable")[(len(values) - 1) // 2])


def pictured(chain: Chain, probabilities: NDArray[np.float64]) -> Pictured:
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
    return Pictured(chain.name, len(chain.residues), touching, predicted)
