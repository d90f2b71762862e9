"""The baselines beside a model: all that can be fitted to an objective, within a bound on their time.

In: an objective, labels, the records of each part, sequences, vectors of the encoder before fine-tuning. Out: by name
`Baseline`s, and for each that is missing why. Kept: nothing.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from finetune.baselines.baseline import Baseline, Parts, constant
from finetune.baselines.features import Features, sequence_features, windows
from finetune.baselines.nearest import Search, nearest_neighbour
from finetune.baselines.ridge import linear
from finetune.labels.labels import Labels
from finetune.tasks.objective import Objective

MOST_S = 600.0
"""Seconds after which no further baseline of a run begins."""
CONSTANT, NEAREST, RESIDUES, FROZEN = "mean or prevalence", "nearest neighbour", "ridge on residues", "ridge on encoder"
"""Names of the baselines, the same for every objective of a run."""


@dataclass(frozen=True, slots=True)
class Vectors:
    """Vectors of the encoder before fine-tuning."""

    of_sequences: NDArray[np.float32] | None
    """(records, D) vectors; None where none are kept."""
    of_residues: NDArray[np.float32] | None
    """(residues, D) of all records one after the other; None where none are kept."""
    first_residues: NDArray[np.int64]
    """(records,) row of the first residue of each record."""
    said: str
    """What they are, or why they are missing."""


def beside(
    objective: Objective,
    labels: Labels,
    parts: Parts,
    sequences: Sequence[str],
    vectors: Vectors,
    began: float,
    search: Search | None = None,
    kept: Callable[[str, Callable[[], Baseline]], Baseline] = lambda name, fit: fit(),
) -> Iterator[tuple[str, Baseline | str]]:
    """Names of all baselines of an objective on one set of parts, the quickest first, and each, or why there is none.

    Args:
        objective: what is predicted.
        labels: of all records.
        parts: what is fitted, what chooses penalties, what is predicted.
        sequences: of all records.
        vectors: of the encoder before fine-tuning.
        began: when the first baseline of the run began, by `time.monotonic`.
        search: finds relatives of sequences of several lengths.
        kept: name, fit -> the baseline, which need not be fitted if it was before.
    """
    yield CONSTANT, constant(objective, labels, parts)
    for name, fit in _fits(objective, labels, parts, sequences, vectors, search):
        if isinstance(fit, str):
            yield name, fit
        elif time.monotonic() > began + MOST_S:
            yield name, f"the baselines before it took more than {MOST_S:g} s"
        else:
            yield name, kept(name, fit)


def _fits(
    objective: Objective,
    labels: Labels,
    parts: Parts,
    sequences: Sequence[str],
    vectors: Vectors,
    search: Search | None,
) -> Iterator[tuple[str, Callable[[], Baseline] | str]]:
    """Names, and what fits each or why nothing does."""
    level = objective.settings.level
    if level == "pair":
        said = "it is not defined for pairs of residues"
        yield from ((name, said) for name in (RESIDUES, FROZEN, NEAREST))
        return
    if level == "residue":
        kept, first = vectors.of_residues, vectors.first_residues
        yield RESIDUES, lambda: linear(RESIDUES, objective, labels, parts, windows(sequences))
    else:
        kept, first = vectors.of_sequences, None
        yield RESIDUES, lambda: linear(RESIDUES, objective, labels, parts, sequence_features(sequences))
    of_encoder = None if kept is None else Features(kept, vectors.said, first)
    frozen = partial(linear, FROZEN, objective, labels, parts)
    yield FROZEN, vectors.said if of_encoder is None else partial(frozen, of_encoder)
    if level == "residue":
        yield NEAREST, "it is not defined for residues"
    else:
        yield NEAREST, lambda: nearest_neighbour(objective, labels, parts, sequences, search)
