"""Composition: a residue is predicted from the other residues of its protein, wherever these are.

In: hidden residues. Out: `CompositionModel`, one fitted number. Kept: nothing.

The letters of a protein are drawn from its own frequencies, which a Dirichlet distribution around the frequencies of
the corpus describes. After `n` visible residues, of which n_k are letter k, the predictive probability is

    p(k) = (n_k + α q_k) / (n + α)

(Bishop 2006, Pattern Recognition and Machine Learning, section 2.2.1), with the frequencies q of the corpus. α, the
weight of the corpus in residues, is the one of a geometric grid that predicts the tuning proteins best.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pretrain.baselines.hidden import HiddenResidues

_GRID = 2.0 ** np.arange(0, 14.25, 0.25)


@dataclass(frozen=True, slots=True, eq=False)
class CompositionModel:
    """The predictor."""

    frequencies: NDArray[np.float64]
    """(K,) q, which add up to 1."""
    strength: float
    """α."""

    def log_probabilities(self, hidden: HiddenResidues) -> NDArray[np.float64]:
        """(d, K) of each letter in each document; the same for every hidden residue of a document."""
        seen = hidden.counts.sum(1, keepdims=True)
        return np.asarray(np.log((hidden.counts + self.strength * self.frequencies) / (seen + self.strength)))

    def losses(self, hidden: HiddenResidues) -> NDArray[np.float64]:
        """(n,) loss of each hidden residue in nats."""
        return -self.log_probabilities(hidden)[hidden.documents, hidden.truths]


def fitted(frequencies: NDArray[np.float64], tuning: HiddenResidues) -> CompositionModel:
    """The composition whose α predicts the hidden residues of `tuning` best."""
    tried = [CompositionModel(frequencies, float(strength)) for strength in _GRID]
    return min(tried, key=lambda each: float(each.losses(tuning).mean()))
