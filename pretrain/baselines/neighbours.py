"""Neighbours: a residue is predicted from the tokens around it, the distances to both ends and the composition.

In: hidden residues, and a fitted composition. Out: a fitted `NeighbourModel`. Kept: nothing.

It is a softmax over the letters whose logits are the log probabilities of the composition plus a linear map of the
features, and of a hidden layer of them if it has one. The maps begin at zero, so that training starts from the
composition. Adam in small batches; each pass hides other residues; the weights are those of the pass that predicts the
tuning proteins best, and the rate is halved when a pass does not improve on it.
"""

from collections.abc import Callable

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from pretrain.baselines.composition import CompositionModel
from pretrain.baselines.hidden import NUM_FEATURES, NUM_LETTERS, HiddenResidues

WIDTH = 256
"""Units of the hidden layer."""
_MOST_BATCH, _LEAST_STEPS = 1024, 50
"""Residues of a step, and steps of a pass over a corpus that has few."""
_RATE = 2e-3
_HALVINGS = 3
_MOST_PASSES = 24
_SCORED = 1 << 15
"""Residues that are scored at a time."""


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
