"""Simple predictors of a hidden residue: by the composition of its protein, and by its neighbours.

In: a bin of documents, and which of their residues are hidden. Out: a `CompositionModel`, which is one
fitted number; a `NeighbourModel`, which starts from it. Kept: nothing.

The letters of a protein are drawn from its own frequencies, which a Dirichlet distribution around the frequencies of
the corpus describes. After `n` visible residues, of which n_k are letter k, the predictive probability is

    p(k) = (n_k + α q_k) / (n + α)

(Bishop 2006, Pattern Recognition and Machine Learning, section 2.2.1), with the frequencies q of the corpus. α, the
weight of the corpus in residues, is the one of a geometric grid that predicts the tuning proteins best.

Neighbours are the tokens around a residue and its distances to both ends. Their model is a softmax over the letters
whose logits are the log probabilities of the composition plus a linear map of the features, and of a hidden layer of
them if it has one. The maps begin at zero, so that training starts from the composition. Adam in small batches; each
pass hides other residues; the weights are those of the pass that predicts the tuning proteins best, and the rate is
halved when a pass does not improve on it.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from data.alphabet import IS_TARGET, TOKENS
from data.batches.contents import MaskedContents
from data.order.plan import Bin

WIDTH = 256
"""Units of the hidden layer."""
_MOST_BATCH, _LEAST_STEPS = 1024, 50
"""Residues of a step, and steps of a pass over a corpus that has few."""
_RATE = 2e-3
_HALVINGS = 3
_MOST_PASSES = 24
_SCORED = 1 << 15
"""Residues that are scored at a time."""


LETTERS = np.flatnonzero(IS_TARGET)
"""(K,) token ids that may be hidden; what is predicted is a place in this list."""
NUM_LETTERS = len(LETTERS)
REACH = 10
"""How many tokens are seen on each side of a hidden one."""
_OUTSIDE = len(TOKENS)
"""What stands where a document has no token."""
NEIGHBOUR_KINDS = _OUTSIDE + 1
_DISTANCES = 11
"""Distances to an end fall into classes: 1, 2 to 3, 4 to 7 and so on, up to 1,024 and more."""
NUM_FEATURES = 2 * REACH * NEIGHBOUR_KINDS + 2 * _DISTANCES
FEATURES_EACH = 2 * REACH + 2

_LETTER_OF = np.full(len(TOKENS), -1, np.int64)
_LETTER_OF[LETTERS] = np.arange(NUM_LETTERS)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class HiddenResidues:
    """n hidden residues of d documents, those of a document one after the other."""

    samples: NDArray[np.int64]
    """(d,) sample id of each document."""
    counts: NDArray[np.int64]
    """(d, K) how often each letter is seen in the document; hidden ones are not counted."""
    documents: NDArray[np.int64]
    """(n,) place of the document of each hidden residue, rising."""
    truths: NDArray[np.int64]
    """(n,) which letter it is, as a place in `LETTERS`."""
    features: NDArray[np.int32]
    """(n, FEATURES_EACH) which of `NUM_FEATURES` are 1: for each neighbour its token, for each end of the document the
    class of the distance to it. Features of different columns have different numbers."""

    def __len__(self) -> int:
        return len(self.truths)


def hidden_residues(bin_: Bin, contents: MaskedContents) -> HiddenResidues:
    """The targets of a bin of any size.

    Args:
        bin_: of whole documents.
        contents: gives tokens and targets; every target must be shown as <mask>.
    """
    filled = contents.fill(bin_)
    (targets, truths, *_), *_ = filled.targets
    slots, lengths = targets.astype(np.int64), bin_.lengths
    of_slots = np.repeat(np.arange(len(lengths)), lengths)
    documents = of_slots[slots]
    letters = _LETTER_OF[filled.inputs]
    seen = letters >= 0
    counts = np.bincount(of_slots[seen] * NUM_LETTERS + letters[seen], minlength=len(lengths) * NUM_LETTERS)

    # Documents side by side with gaps, so that a window never reaches into the next one.
    apart = np.full(len(letters) + REACH * (len(lengths) + 1), _OUTSIDE, np.int32)
    apart[np.arange(len(letters)) + REACH * (of_slots + 1)] = filled.inputs
    offsets = np.concatenate([np.arange(-REACH, 0), np.arange(1, REACH + 1)])
    windows = apart[(slots + REACH * (documents + 1))[:, None] + offsets]
    windows += NEIGHBOUR_KINDS * np.arange(2 * REACH, dtype=np.int32)

    before = slots - (np.cumsum(lengths) - lengths)[documents]
    distances = np.stack([before + 1, lengths[documents] - before], axis=1)
    classes = np.minimum(np.log2(distances).astype(np.int32), _DISTANCES - 1)
    classes += 2 * REACH * NEIGHBOUR_KINDS + _DISTANCES * np.arange(2, dtype=np.int32)
    return HiddenResidues(
        samples=bin_.samples,
        counts=counts.reshape(len(lengths), NUM_LETTERS),
        documents=documents,
        truths=_LETTER_OF[truths],
        features=np.concatenate([windows, classes], axis=1),
    )


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


def fit_composition(frequencies: NDArray[np.float64], tuning: HiddenResidues) -> CompositionModel:
    """The composition whose α predicts the hidden residues of `tuning` best."""
    tried = [CompositionModel(frequencies, float(strength)) for strength in _GRID]
    return min(tried, key=lambda each: float(each.losses(tuning).mean()))


class NeighbourModel(nn.Module):
    """The predictor; weights are float32 on the CPU.

    Args:
        composition: whose log probabilities it starts from.
        width: units of the hidden layer; 0 for none.
    """

    def __init__(self, composition: CompositionModel, width: int) -> None:
        super().__init__()
        self.composition = composition
        self.linear = nn.Parameter(torch.zeros(NUM_FEATURES, NUM_LETTERS))
        self.of_composition = nn.Parameter(torch.zeros(NUM_LETTERS, max(width, NUM_LETTERS)))
        self.width = width
        if width:
            draws = torch.Generator().manual_seed(0)
            self.into = nn.Parameter(torch.empty(NUM_FEATURES, width).normal_(0, 0.1, generator=draws))
            self.bias = nn.Parameter(torch.zeros(width))
            self.out = nn.Parameter(torch.zeros(width, NUM_LETTERS))

    def forward(self, prior: Tensor, features: Tensor) -> Tensor:
        """Logits ``(n, K)`` from log probabilities ``(n, K)`` and numbers of features ``(n, FEATURES_EACH)`` int32."""
        logits = prior + F.embedding_bag(features, self.linear, mode="sum")
        centred = prior - prior.mean(1, keepdim=True)
        if not self.width:
            return logits + centred @ self.of_composition
        inside = F.embedding_bag(features, self.into, mode="sum") + centred @ self.of_composition + self.bias
        return logits + F.gelu(inside) @ self.out

    @torch.no_grad()
    def losses(self, hidden: HiddenResidues) -> NDArray[np.float64]:
        """(n,) loss of each hidden residue in nats."""
        prior, features, truths = self._inputs(hidden)
        found = [
            F.cross_entropy(self(prior[part], features[part]), truths[part], reduction="none")
            for part in (slice(at, at + _SCORED) for at in range(0, len(hidden), _SCORED))
        ]
        return torch.cat(found).double().numpy() if found else np.zeros(0)

    def fit(self, passes: Callable[[int], HiddenResidues], tuning: HiddenResidues) -> None:
        """Train it.

        Args:
            passes: the number of a pass, from 0 -> the hidden residues of the training proteins in that pass.
            tuning: hidden residues of other proteins.
        """
        draws = torch.Generator().manual_seed(0)
        rate, halvings, best = _RATE, 0, float(self.losses(tuning).mean())
        kept = {name: value.clone() for name, value in self.state_dict().items()}
        optimizer = torch.optim.Adam(self.parameters(), lr=rate, betas=(0.9, 0.99))
        for number in range(_MOST_PASSES):
            prior, features, truths = self._inputs(passes(number))
            order, of_step = torch.randperm(len(truths), generator=draws), min(_MOST_BATCH, len(truths) // _LEAST_STEPS)
            for batch in torch.split(order, max(1, of_step)):
                optimizer.zero_grad()
                torch.autograd.backward(F.cross_entropy(self(prior[batch], features[batch]), truths[batch]))
                optimizer.step()
            if (loss := float(self.losses(tuning).mean())) < best:
                best, kept = loss, {name: value.clone() for name, value in self.state_dict().items()}
                continue
            halvings += 1
            if halvings > _HALVINGS:
                break
            self.load_state_dict(kept)
            rate /= 2
            optimizer = torch.optim.Adam(self.parameters(), lr=rate, betas=(0.9, 0.99))
        self.load_state_dict(kept)

    def _inputs(self, hidden: HiddenResidues) -> tuple[Tensor, Tensor, Tensor]:
        prior = torch.from_numpy(self.composition.log_probabilities(hidden)).float()
        return (
            prior[torch.from_numpy(hidden.documents)],
            torch.from_numpy(hidden.features),
            torch.from_numpy(hidden.truths),
        )
