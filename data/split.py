"""Held-out validation by cluster: a stable hash of the cluster decides, so no relative of a validation protein trains.

In: a store's cluster hashes. Out: record ids of both sides and a fingerprint. Kept: nothing; seeds have no part in it,
so every run on a corpus is scored on the same proteins.
"""

import hashlib
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from data import draw
from data.store import Store


@dataclass(frozen=True, slots=True)
class Split:
    """Record ids of the training and the validation side, each ascending, int64."""

    training: NDArray[np.int64]
    validation: NDArray[np.int64]
    fingerprint: str
    """Hash of the corpus and of the validation ids."""


def split_by_cluster(store: Store, validation_fraction: float) -> Split:
    """Hold out about `validation_fraction` of the clusters, whole.

    Raises:
        ValueError: one side would be empty.
    """
    held_out = draw.below(draw.hashes(0, store.clusters), validation_fraction)
    validation = np.flatnonzero(held_out)
    if not 0 < len(validation) < store.num_records:
        clusters = len(np.unique(store.clusters))
        raise ValueError(
            f"data.validation_fraction = {validation_fraction} of {clusters} clusters ({store.num_records} records) "
            f"leaves {len(validation)} records for validation and {store.num_records - len(validation)} for training; "
            "change the fraction, or give more sequences or finer clusters"
        )
    fingerprint = hashlib.blake2b(store.fingerprint.encode() + validation.tobytes(), digest_size=16)
    return Split(np.flatnonzero(~held_out), validation, fingerprint.hexdigest())
