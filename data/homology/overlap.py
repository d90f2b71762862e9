"""Overlap: records that would train although an equal sequence validates, or is excluded, in any corpus of a run.

In: the splits of all corpora of a run. Out: the same splits, with these records taken out of training. Kept: for each
corpus, at the place that `data.store.derived` gives, a folder ``overlap-HASH``, written whole or not at all:

    copies.bin      int64, the records that are taken out, rising
    overlap.json    how many of them equal a validation record, and how many only an excluded one

Records are equal if they have the same digest. Each split holds out by the names of its own clusters, so equal
sequences in two clusters, or in two corpora of which one has no table, may be on both sides. Relatives that are not
equal are not found here: for them all corpora need one table of clusters.
"""

import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from data.homology.clusters import INT64, open_clusters, write_array
from data.homology.split import CorpusSplit, fingerprint_of, restrict_to
from data.store import derived
from data.store.derived import cache_dir

if TYPE_CHECKING:
    from data.store.token_store import TokenStore

FORMAT = "zymogen.overlap/1"
_Digests = tuple[NDArray[np.uint64], NDArray[np.uint64]]
"""Digests that validate and digests that are excluded, in any corpus; rising."""


def remove_overlap(splits: Sequence[CorpusSplit]) -> tuple[CorpusSplit, ...]:
    """The splits of one run, with every record taken out of training whose sequence validates or is excluded anywhere.

    These records are found once and kept beside each store; the validation records stay the same. A split that loses no
    record keeps its fingerprint. While the folders are written, each digest that validates or is excluded takes 8 bytes
    of memory.

    Raises:
        ValueError: no record of a corpus is left to train on.
    """
    if all(split.clusters.folder is None and not len(split.excluded) for split in splits):
        return tuple(splits)  # clusters are digests everywhere, so equal sequences are on the same side
    everywhere = sorted({split.fingerprint for split in splits})
    digests = cache(lambda: _not_for_training(splits))
    return tuple(_disjoint(split, everywhere, digests) for split in splits)


def _disjoint(split: CorpusSplit, everywhere: Sequence[str], digests: Callable[[], _Digests]) -> CorpusSplit:
    key = json.dumps([FORMAT, split.fingerprint, everywhere])
    folder = cache_dir(split.clusters.store, f"overlap-{hashlib.blake2b(key.encode(), digest_size=8).hexdigest()}")
    fields = ("fingerprint", "copies_of_validation", "copies_of_excluded", "copies_hash")
    facts = derived.kept_json(folder / "overlap.json", fields, lambda building: _write(building, split, *digests()))
    count = facts["copies_of_validation"] + facts["copies_of_excluded"]
    return replace(
        split,
        num_training=split.num_training - count,
        fingerprint=facts["fingerprint"],
        copies=derived.read_array(folder / "copies.bin", INT64, facts["copies_hash"], count),
        copies_of_validation=facts["copies_of_validation"],
        copies_of_excluded=facts["copies_of_excluded"],
    )


def _not_for_training(splits: Sequence[CorpusSplit]) -> _Digests:
    """Digests that validate and digests that are excluded, in any corpus; rising."""
    found: tuple[list[NDArray[np.uint64]], list[NDArray[np.uint64]]] = [], []
    for split in splits:
        for start, digests in _digests(split.clusters.store):
            for side, of_side in zip((split.validation, split.excluded), found, strict=True):
                first, behind = np.searchsorted(side, [start, start + len(digests)])
                of_side.append(digests[side[first:behind] - start])
    validating, excluded = (np.unique(np.concatenate(side)) for side in found)
    return validating, excluded


def _write(
    building: Path, split: CorpusSplit, validating: NDArray[np.uint64], excluded: NDArray[np.uint64]
) -> dict[str, Any]:
    of_validation = of_excluded = 0

    def blocks() -> Iterator[NDArray[np.int64]]:
        nonlocal of_validation, of_excluded
        for start, digests in _digests(split.clusters.store):
            validates = restrict_to(digests, validating)
            equal = np.flatnonzero(validates | restrict_to(digests, excluded))
            equal = equal[split.is_training(start + equal)]
            of_validation += int(np.count_nonzero(validates[equal]))
            of_excluded += int(np.count_nonzero(~validates[equal]))
            yield start + equal

    content_hash = write_array(building / "copies.bin", blocks(), INT64)
    copies = of_validation + of_excluded
    if copies == split.num_training:
        store = split.clusters.store
        raise ValueError(
            f"{store.folder}: of its {store.num_records} records {len(split.validation)} validate and "
            f"{len(split.excluded)} are excluded; of the others, {of_validation} equal a sequence that validates and "
            f"{of_excluded} one that is excluded, here or in another corpus, so none is left to train on; leave this "
            "corpus out, or lower data.validation_fraction"
        )
    return {
        "format": FORMAT,
        "split": split.fingerprint,
        "fingerprint": fingerprint_of(split.fingerprint, content_hash) if copies else split.fingerprint,
        "copies_of_validation": of_validation,
        "copies_of_excluded": of_excluded,
        "copies_hash": content_hash,
    }


def _digests(store: "TokenStore") -> Iterator[tuple[int, NDArray[np.uint64]]]:
    """First record and digests of each block of a store."""
    return open_clusters(store, None).blocks()
