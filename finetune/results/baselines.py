"""Baselines for the tasks of a run: all that can be fitted, within a limit on their time.

In: an objective, labels, the records of each part, sequences, vectors of the encoder before fine-tuning. Out: by name
`TaskBaseline`s, and for each that is missing why. Kept: nothing.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial

from finetune.baselines.baseline import PartRecords, TaskBaseline, constant
from finetune.baselines.features import Features, sequence_features, windows
from finetune.baselines.nearest import Search, nearest_neighbour
from finetune.baselines.ridge import linear
from finetune.labels.labels import Labels
from finetune.tasks.task import Task

MOST_S = 600.0
"""Seconds after which no further baseline of a run begins."""
CONSTANT, NEAREST, RESIDUES, FROZEN = "mean or prevalence", "nearest neighbour", "ridge on residues", "ridge on encoder"
"""Names of the baselines, the same for every objective of a run."""


def fit_baselines(
    objective: Task,
    labels: Labels,
    parts: PartRecords,
    sequences: Sequence[str],
    vectors: Features | str,
    began: float,
    search: Search,
) -> Iterator[tuple[str, TaskBaseline | str]]:
    """Names of all baselines of an objective on one set of parts, the quickest first, and each, or why there is none.

    Args:
        objective: what is predicted.
        labels: of all records.
        parts: what is fitted, what chooses penalties, what is predicted.
        sequences: of all records.
        vectors: of the encoder before fine-tuning, of the objective's level; or why they are missing.
        began: when the first baseline of the run began, by `time.monotonic`.
        search: finds relatives of sequences of several lengths.
    """
    level = objective.settings.level
    features = windows if level == "residue" else sequence_features
    fits: dict[str, Callable[[], TaskBaseline] | str] = {
        RESIDUES: lambda: linear(RESIDUES, objective, labels, parts, features(sequences)),
        FROZEN: vectors if isinstance(vectors, str) else partial(linear, FROZEN, objective, labels, parts, vectors),
        NEAREST: lambda: nearest_neighbour(objective, labels, parts, sequences, search),
    }
    if level == "residue":
        fits[NEAREST] = "it is not defined for residues"
    elif level == "pair":
        fits = dict.fromkeys((RESIDUES, FROZEN, NEAREST), "it is not defined for pairs of residues")
    yield CONSTANT, constant(objective, labels, parts)
    for name, fit in fits.items():
        if isinstance(fit, str):
            yield name, fit
        elif time.monotonic() > began + MOST_S:
            yield name, f"the baselines before it took more than {MOST_S:g} s"
        else:
            yield name, fit()
