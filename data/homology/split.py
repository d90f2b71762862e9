"""Held-out validation by cluster: a stable hash of the cluster decides, so no relative of a validation protein trains.

In: a store's cluster hashes. Out: which records train, the numbers of those that validate, a fingerprint. Kept: a
folder ``split-HASH`` at the place that `data.store.derived` gives, with validation.bin and excluded.bin (int64, rising)
and split.json. It does not depend on a seed, so every run on a corpus is scored on the same proteins.
"""

import hashlib
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from data.homology.clusters import INT64, Clusters, write_array
from data.store import derived
from data.store.derived import cache_dir
from data.store.token_store import new_hash
from zymogen import keyed_random

if TYPE_CHECKING:
    from data.store.token_store import TokenStore

FORMAT = "zymogen.split/1"
_BLOCK = 1 << 20
_NONE = np.zeros(0, np.int64)


@dataclass(frozen=True, slots=True)
class CorpusSplit:
    """The two sides of a corpus.

    A record that is held out validates. All others train, except the excluded ones and the *copies*, which equal a
    record that validates or is excluded in any corpus of the run (`data.homology.overlap`).
    """

    clusters: Clusters
    validation_fraction: float
    num_training: int
    """Number of records that train; of a growing store, those of its prefix."""
    fingerprint: str
    """Hash of the corpus, the validation records, the excluded records and, if there are any, the copies."""
    validation: NDArray[np.int64] = field(compare=False)
    """The validation records, int64, rising; a memory map."""
    excluded: NDArray[np.int64] = field(compare=False)
    """The records that `data.exclude` removes from both sides, int64, rising; a memory map."""
    copies: NDArray[np.int64] = field(default_factory=lambda: _NONE, compare=False)
    """The copies, which are on neither side, int64, rising; a memory map."""
    copies_of_validation: int = 0
    """Number of copies of which an equal sequence validates."""
    copies_of_excluded: int = 0
    """Number of the other copies: an equal sequence is excluded, and none validates."""

    def is_training(self, records: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Whether each of `records`, (n,) in any order, trains; reads only the entries of these records."""
        training = ~split_by_cluster(self.clusters.of_records[records], self.validation_fraction)
        for left_out in (self.excluded, self.copies):
            if len(left_out):
                training &= ~restrict_to(records, left_out)
        return training


def split_by_cluster(cluster_hashes: NDArray[np.uint64], validation_fraction: float) -> NDArray[np.bool_]:
    """Whether each cluster is held out for validation, by its hash."""
    return keyed_random.below(keyed_random.hashes(0, np.asarray(cluster_hashes)), validation_fraction)


def restrict_to(values: NDArray[Any], rising: NDArray[Any]) -> NDArray[np.bool_]:
    """Whether each of `values` is in the sorted array `rising`."""
    if not len(rising):
        return np.zeros(len(values), np.bool_)
    return np.asarray(rising[np.minimum(np.searchsorted(rising, values), len(rising) - 1)] == values)


def open_split(
    store: "TokenStore", clusters: Clusters, validation_fraction: float, excluded: NDArray[np.int64] | None
) -> CorpusSplit:
    """Hold out about `validation_fraction` of the clusters, each as a whole; written beside the store once and reused.

    Args:
        store: a finished store.
        clusters: its clusters.
        validation_fraction: share of the clusters, in [0, 1); 0 holds out none.
        excluded: records that must not train, rising.

    Raises:
        ValueError: one side would be empty, although it should not be; what was written before is damaged.
    """
    excluded = _NONE if excluded is None else excluded
    key = [FORMAT, store.fingerprint, clusters.fingerprint, float(validation_fraction).hex(), _content(excluded)]
    folder = cache_dir(store, f"split-{hashlib.blake2b(json.dumps(key).encode(), digest_size=8).hexdigest()}")
    fields = ("fingerprint", "training", *(name + of for name in ("validation", "excluded") for of in ("", "_hash")))
    facts = derived.kept_json(
        folder / "split.json",
        fields,
        lambda building: _write(building, store, clusters, validation_fraction, excluded),
    )
    validation, left_out = (
        derived.read_array(folder / f"{name}.bin", INT64, facts[f"{name}_hash"], facts[name])
        for name in ("validation", "excluded")
    )
    return CorpusSplit(clusters, validation_fraction, facts["training"], facts["fingerprint"], validation, left_out)


def prefix_split(store: "TokenStore", prefix: int, validation_fraction: float) -> CorpusSplit:
    """The split of a growing store that has at least `prefix` records; nothing is written.

    Equal sequences share a cluster. The records of the prefix that are held out validate, and no others later; a later
    record whose cluster is held out does not train either. The fingerprint covers the prefix.

    Raises:
        ValueError: one side of the prefix would be empty.
    """
    digests = np.asarray(store.digests[:prefix])
    validation = np.flatnonzero(split_by_cluster(digests, validation_fraction))
    _require_both(validation_fraction, len(np.unique(digests)), prefix, len(validation), 0)
    fingerprint = fingerprint_of(_content(digests), _content(validation), _content(_NONE))
    num_training = prefix - len(validation)
    return CorpusSplit(Clusters(store, None), validation_fraction, num_training, fingerprint, validation, _NONE)


def _write(
    building: Path, store: "TokenStore", clusters: Clusters, validation_fraction: float, excluded: NDArray[np.int64]
) -> dict[str, Any]:
    validation = (
        start + np.flatnonzero(split_by_cluster(held, validation_fraction)) for start, held in clusters.blocks()
    )
    blocks = (np.asarray(excluded[start : start + _BLOCK]) for start in range(0, len(excluded), _BLOCK))
    left_out = (ids[~split_by_cluster(clusters.of_records[ids], validation_fraction)] for ids in blocks)
    sides = {"validation": validation, "excluded": left_out}
    hashes = {name: write_array(building / f"{name}.bin", ids, INT64) for name, ids in sides.items()}
    counts = {name: (building / f"{name}.bin").stat().st_size // 8 for name in sides}
    num_training = store.num_records - counts["validation"] - counts["excluded"]
    if not counts["validation"] or not num_training:
        num_clusters = len(clusters.members.clusters)
        _require_both(validation_fraction, num_clusters, store.num_records, counts["validation"], counts["excluded"])
    return {
        "format": FORMAT,
        "fingerprint": fingerprint_of(store.fingerprint, hashes["validation"], hashes["excluded"]),
        "corpus": store.fingerprint,
        "clusters": clusters.fingerprint,
        "clusters_are": clusters.description,
        "validation_fraction": validation_fraction,
        "records": store.num_records,
        "training": num_training,
        **counts,
        **{f"{name}_hash": content for name, content in hashes.items()},
    }


def _require_both(
    validation_fraction: float, num_clusters: int, num_records: int, num_validation: int, num_excluded: int
) -> None:
    num_training = num_records - num_validation - num_excluded
    if (num_validation or not validation_fraction) and num_training:
        return
    left_out = f" and {num_excluded} excluded by data.exclude" if num_excluded else ""
    raise ValueError(
        f"data.validation_fraction = {validation_fraction} of {num_clusters} clusters ({num_records} records) "
        f"leaves {num_validation} records for validation and {num_training} for training{left_out}; "
        "change the fraction, or give more sequences or finer clusters"
    )


def fingerprint_of(*contents: str) -> str:
    """One hash of several."""
    return new_hash(json.dumps(contents).encode()).hexdigest()


def _content(array: NDArray[Any]) -> str:
    content = new_hash()
    for start in range(0, len(array), _BLOCK):
        content.update(np.ascontiguousarray(array[start : start + _BLOCK]).tobytes())
    return content.hexdigest()
