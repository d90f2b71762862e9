"""A judge beside loss: the secondary structure that a ridge reads from a run's frozen encoder, residue by residue.

    python -m benchmarks.learning.judged MODEL CROP_TOKENS STRUCTURE OUT

In: a finished run, or any model that `open_trained_model` takes; the longest document that its encoder reads; the file
that `structure.structures` takes. Out: a file that `Judged.read` reads. Kept: this file.

A residue is what the encoder's final norm gives there, in float32. A protein of more tokens than the runs were trained
on is read in windows of so many that overlap by half, so that every residue is judged and none sees farther than in
training. The ridge has three outputs, 1 for the state of the residue and 0 for the others, and the largest is its
answer. Features have the mean 0 and the variance 1 over the residues that are fitted, and the penalty, in sums over
these residues, is the one that is right most often on a tenth of the proteins after a fit on the others; then all of
them are fitted. Residues that are not resolved do not count on either side.
"""

import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import add
from pathlib import Path
from typing import Self

import numpy as np
from numpy.typing import NDArray

from benchmarks.learning.around import as_trained
from benchmarks.learning.scored import Kept
from benchmarks.learning.structure import STATES, UNKNOWN, Protein, Structures, structures
from data.batches.packed import BinSize, PlainContents, TokenArrays, split_by_tokens, token_ids
from data.order.plan import SPECIAL_TOKENS
from data.order.settings import bin_tokens_on
from finetune.adaptation.vectors import Embedder, windows_of
from finetune.baselines.features import windows
from finetune.baselines.ridge import ALPHAS
from pretrain.evaluate.score_models import LAUNCH
from pretrain.model.encoder import Encoder
from pretrain.trained_model import masked_language_model, open_trained_model
from zymogen.trainer.engine.launch import launch

Floats = NDArray[np.float64]
Features = Callable[[Sequence[str]], NDArray[np.floating]]
"""Sequences -> (residues, D) of all of them, one after another."""
_CHOOSE = 10
"""One of so many proteins chooses the penalty."""
_AT_ONCE = 16_384
"""Residues whose features are in memory together, unless one protein has more."""
_CONSTANT = 1e-12
"""A column whose variance is not more than this part of its squared mean is constant: the rest is rounding."""


@dataclass(frozen=True, slots=True, eq=False)
class Judged(Kept):
    """What was right of each protein that is judged."""

    names: NDArray[np.str_]
    """(proteins,) by rising hash of the sequence."""
    correct: NDArray[np.int64]
    """(proteins,) residues whose state is right."""
    residues: NDArray[np.int64]
    """(proteins,) residues whose state is known."""
    alpha: NDArray[np.float64]
    """() the penalty."""
    fingerprint: NDArray[np.str_]
    """() of the `Structures`."""

    @property
    def q3(self) -> float:
        """Share of all residues whose state is right."""
        return float(self.correct.sum() / self.residues.sum())


@dataclass(frozen=True, slots=True, eq=False)
class Moments:
    """Sums over residues of which a ridge is made."""

    count: int
    features: Floats
    """(D,)."""
    states: Floats
    """(3,) residues of each state."""
    squares: Floats
    """(D, D) products of features."""
    products: Floats
    """(D, 3) features of the residues of each state."""

    def __add__(self, other: Self) -> Self:
        return type(self)(*(getattr(self, name) + getattr(other, name) for name in self.__slots__))

    @classmethod
    def of(cls, features: Floats, states: NDArray[np.int64]) -> Self:
        """The sums over some residues: features ``(n, D)``, states ``(n,)``."""
        is_state = (states[:, None] == np.arange(len(STATES))).astype(np.float64)
        return cls(
            len(states), features.sum(0), is_state.sum(0), features.T @ features, features.T @ is_state
        )  # fmt: skip

    def ridge(self, alpha: float) -> "Ridge":
        """The ridge of standardised features, Hastie et al. 2009, equation 3.44; its intercept has no penalty."""
        mean, shares = self.features / self.count, self.states / self.count
        variance = np.diag(self.squares) / self.count - mean**2
        is_constant = variance <= _CONSTANT * mean**2
        scale = np.where(is_constant, 0.0, 1 / np.sqrt(np.where(is_constant, 1.0, variance)))
        gram = scale[:, None] * (self.squares - self.count * np.outer(mean, mean)) * scale
        right = scale[:, None] * (self.products - np.outer(mean, self.states))
        weight = scale[:, None] * np.linalg.solve(gram + alpha * np.eye(len(gram)), right)
        return Ridge(weight, shares - mean @ weight)


@dataclass(frozen=True, slots=True, eq=False)
class Ridge:
    """A fit, in the units of the features."""

    weight: Floats
    """(D, 3)."""
    intercept: Floats
    """(3,)."""

    def is_right(self, features: Floats, states: NDArray[np.int64]) -> NDArray[np.bool_]:
        """(n,) whether the largest of the outputs is the state of a residue."""
        return np.asarray((features @ self.weight + self.intercept).argmax(1) == states)


@dataclass(frozen=True, slots=True)
class Embedded:
    """What an encoder makes of each residue (`Features`)."""

    encoder: Encoder
    crop_tokens: int
    """Longest document, begin and end token counted."""

    def __call__(self, sequences: Sequence[str]) -> NDArray[np.float32]:
        """(residues, D) of all of them, one after another."""
        lengths = np.array([len(letters) + SPECIAL_TOKENS for letters in sequences])
        device = next(self.encoder.parameters()).device.type
        size = BinSize.holding(lengths, bin_tokens_on(device))
        embedder = Embedder(self.encoder, (self.encoder.shape.layers,), "residue", autocast=False)
        contents = PlainContents(TokenArrays([*map(token_ids, sequences)]), size)
        return embedder(contents, np.arange(len(lengths)), windows_of(lengths, self.crop_tokens))[:, 0]


def neighbours(sequences: Sequence[str]) -> Floats:
    """What a model must beat (`Features`): one-hot residues of a window of seven on either side."""
    found = windows(sequences)
    assert found.first_rows is not None
    return np.asarray(found.matrix[np.arange(sum(map(len, sequences)))].toarray())


def judge(features: Features, known: Structures) -> Judged:
    """Fit on some proteins, and judge by the others.

    Raises:
        ValueError: features are NaN or infinite.
    """
    choosing = len(known.fitted) // _CHOOSE
    most = reduce(add, (Moments.of(*some[:2]) for some in _parts(features, known.fitted[choosing:])))
    tried = [most.ridge(alpha) for alpha in ALPHAS]
    rest, right = [], np.zeros(len(ALPHAS), np.int64)
    for values, states, _ in _parts(features, known.fitted[:choosing]):
        rest.append(Moments.of(values, states))
        right += [int(each.is_right(values, states).sum()) for each in tried]
    alpha = max(zip(right.tolist(), ALPHAS, strict=True))[1]  # of equal ones the strongest penalty
    final = reduce(add, rest, most).ridge(alpha)
    correct, residues = np.zeros((2, len(known.judged)), np.int64)
    for values, states, owners in _parts(features, known.judged):
        np.add.at(correct, owners, final.is_right(values, states))
        np.add.at(residues, owners, 1)
    names = np.array([protein.name for protein in known.judged])
    return Judged(names, correct, residues, np.array(alpha), np.array(known.fingerprint))


def _parts(
    features: Features, proteins: Sequence[Protein]
) -> Iterator[tuple[Floats, NDArray[np.int64], NDArray[np.int64]]]:
    """Features ``(n, D)``, states ``(n,)`` and numbers of the proteins ``(n,)`` of known residues, some at a time."""
    lengths = np.array([len(protein.sequence) for protein in proteins])
    for some in split_by_tokens(lengths, _AT_ONCE, len(proteins)):
        states = np.concatenate([protein.states for protein in proteins[some]])
        owners = np.repeat(np.arange(len(proteins))[some], lengths[some])
        found = features([protein.sequence for protein in proteins[some]])
        if not np.isfinite(found).all():
            raise ValueError("the encoder gives numbers that are not finite; its weights are damaged: train it again")
        is_known = states != UNKNOWN
        yield np.asarray(found[is_known], np.float64), states[is_known], owners[is_known]


def main(named: str, crop_tokens: str, structure: str, out: str) -> None:
    """Judge a model, and write the file."""
    with launch(LAUNCH) as engine:
        model = as_trained(masked_language_model(open_trained_model(named), engine.device), Path(named))
        judge(Embedded(model.encoder, int(crop_tokens)), structures(Path(structure))).write(Path(out))


if __name__ == "__main__":
    main(*sys.argv[1:])
