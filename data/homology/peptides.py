"""Relatives of peptides: sequences below `SHORT` residues, compared by position in every ungapped alignment.

In: records of stores. Out: pairs and their identity, links between records. Kept: nothing.

A search by words and E-values does not find relatives of peptides: an alignment of ten residues is expected by chance.
The identity of a pair of which at least one is a peptide is the number of equal positions in its best ungapped
alignment over the length of the longer sequence. Letters that are no standard residue equal nothing.
"""

from collections.abc import Iterator
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from data.alphabet import STANDARD_IDS
from data.homology.components import find_components

if TYPE_CHECKING:
    from data.store.token_store import TokenStore

SHORT = 30
"""Residues below which a sequence is a peptide."""
MOST_COMPARISONS = 2 * 10**12
"""Comparisons of two residues up to which peptides are compared, as 100,000 of ten residues have with each other."""
NAME = f"position below {SHORT} residues"
"""How peptides are compared, for everything that reports the results."""

_LEAST = 0.3
"""Least identity of a pair that is reported."""
_CONTAINED = 8
"""Residues from which on a peptide inside a longer protein is linked with it; shorter ones are found by chance."""
_MOST_PAIRS = 100
"""Most pairs of a query that are kept, by identity."""
_BLOCK = 1 << 17
"""Residues of the others that are compared at once, so that they stay in a processor's cache."""
_NONE = len(STANDARD_IDS)
_CODE_OF: NDArray[np.uint8] = np.full(256, _NONE, np.uint8)
_CODE_OF[STANDARD_IDS] = np.arange(_NONE)


def similar(
    store: "TokenStore", records: NDArray[np.int64], against: "TokenStore", targets: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float64], NDArray[np.bool_]]:
    """All pairs of at least 30 % identity of which at least one is a peptide; of one query the 100 best.

    A peptide that asks a target of `SHORT` residues or more has the identity over its own length, as an audit asks how
    much of the query is known.

    Args:
        store: the store of the queries.
        records: (queries,) their records.
        against: the store of the targets.
        targets: (targets,) their records.

    Returns:
        For each pair, by query and then by falling identity: place of the query, place of the target, identity. And for
        each query whether its pairs could be compared: they are not too many, and it has enough known letters.
    """
    asked, others = store.num_residues(records), against.num_residues(targets)
    is_compared, found = np.ones(len(records), np.bool_), [np.zeros((3, 0))]
    short, everything = np.flatnonzero(asked < SHORT), np.arange(len(targets))
    for at, place, equal in _equal(store, records, short, against, targets, everything):
        of = others[place]
        identity = equal / np.where(of < SHORT, np.maximum(of, asked[at]), asked[at])
        best = np.flatnonzero(identity >= _LEAST)
        best = best[np.argsort(-identity[best], kind="stable")[:_MOST_PAIRS]]
        found.append(np.stack([np.full(len(best), at), place[best], identity[best]]))
    is_compared[short] = [(_CODE_OF[store.residues(r)] != _NONE).mean() >= _LEAST for r in records[short].tolist()]
    is_compared[short] &= can_compare(asked[short], others)
    medium, short = np.flatnonzero((asked >= SHORT) & (asked * _LEAST < SHORT)), np.flatnonzero(others < SHORT)
    for at, place, equal in _equal(against, targets, short, store, records, medium):
        best = np.flatnonzero(equal / asked[place] >= _LEAST)
        found.append(np.stack([place[best], np.full(len(best), at), equal[best] / asked[place[best]]]))
    is_compared[medium] &= can_compare(others[short], asked[medium])
    query, target, identity = np.concatenate(found, axis=1)
    order = np.lexsort((target, -identity, query))
    order = order[np.arange(len(order)) - np.searchsorted(query[order], query[order]) < _MOST_PAIRS]
    return query[order].astype(np.int64), target[order].astype(np.int64), identity[order], is_compared


def links(store: "TokenStore", records: NDArray[np.int64], min_identity: float) -> NDArray[np.int64]:
    """(2, links) pairs of records that make one cluster of all peptides of at least `min_identity`.

    A peptide that lies whole in a longer protein is linked with it. There are none where the peptides are too many to
    be compared (`can_compare`).
    """
    lengths = store.num_residues(records)
    short, component, found = np.flatnonzero(lengths < SHORT), np.arange(len(records)), [np.zeros((2, 0), np.int64)]
    for at, place, equal in _equal(store, records, short, store, records, np.arange(len(records))):
        of = lengths[place]
        is_close = equal >= min_identity * np.maximum(of, lengths[at]) - 1e-9
        is_close |= (equal == lengths[at]) & (of >= SHORT) & (lengths[at] >= _CONTAINED)
        ends = place[is_close & (component[place] != component[at])]
        if len(ends):
            component[np.isin(component, component[ends])] = component[at]
            found.append(np.stack([np.full(len(ends), records[at]), records[ends]]))
    return np.concatenate(found, axis=1)


def cluster_peptides(hashes: NDArray[np.uint64], ends: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Clusters, some of which are made one: the lowest hash of all that are linked.

    Args:
        hashes: (n,) of records.
        ends: (2, links) the clusters that are linked.
    """
    clusters, of_ends = np.unique(ends, return_inverse=True)
    if not len(clusters):
        return hashes
    component = find_components(len(clusters), *of_ends.reshape(ends.shape))
    lowest = clusters[np.unique(component, return_index=True)[1]][component]  # clusters rise, so the first is lowest
    at = np.minimum(np.searchsorted(clusters, hashes), len(clusters) - 1)
    return np.where(clusters[at] == hashes, lowest[at], hashes)


def count(store: "TokenStore") -> tuple[int, float]:
    """Number of peptides of a store, and how many residues are compared to find their relatives in all of it."""
    found = [np.zeros(0, np.int64)]
    for start in range(0, store.num_records, _BLOCK):
        lengths = store.num_residues(np.arange(start, min(start + _BLOCK, store.num_records)))
        found.append(lengths[lengths < SHORT])
    lengths = np.concatenate(found)
    return len(lengths), float(lengths.sum()) * (store.total_residues + lengths.max(initial=0) * store.num_records)


def can_compare(peptides: NDArray[np.int64], others: NDArray[np.int64]) -> bool:
    """Whether peptides and others of these lengths are few enough to be compared."""
    compared = float(peptides.sum()) * float(others.sum() + peptides.max(initial=0) * len(others))
    return compared <= MOST_COMPARISONS


def _equal(
    store: "TokenStore",
    records: NDArray[np.int64],
    peptides: NDArray[np.int64],
    against: "TokenStore",
    targets: NDArray[np.int64],
    others: NDArray[np.int64],
) -> Iterator[tuple[int, NDArray[np.int64], NDArray[np.int64]]]:
    """Place of a peptide, places of some others, and how many positions are equal in the best alignment with each.

    Args:
        store: the store of the peptides.
        records: their records are among these,
        peptides: at these places.
        against: the store of the others.
        targets: their records are among these,
        others: at these places.
    """
    of_peptides, lengths = store.num_residues(records[peptides]), against.num_residues(targets[others])
    if not len(peptides) or not can_compare(of_peptides, lengths):
        return
    gap = int(of_peptides.max())  # between two others, so that no alignment reaches both
    lengths += gap
    codes = [_CODE_OF[store.residues(record)].tolist() for record in records[peptides].tolist()]
    firsts = np.flatnonzero(np.diff(np.cumsum(lengths) // _BLOCK, prepend=-1)).tolist()
    for first, stop in pairwise([*firsts, len(others)]):
        starts = np.concatenate([[0], np.cumsum(lengths[first:stop])])
        text = np.full(starts[-1] + gap, _NONE, np.uint8)
        for start, record in zip(starts.tolist(), targets[others[first:stop]].tolist(), strict=False):
            residues = against.residues(record)
            text[start + gap : start + gap + len(residues)] = _CODE_OF[residues]
        is_residue = (text == np.arange(_NONE, dtype=np.uint8)[:, None]).view(np.uint8)
        for at, peptide in zip(peptides.tolist(), codes, strict=True):
            equal = np.zeros(starts[-1], np.uint8)
            for place, code in enumerate(peptide):
                if code != _NONE:
                    equal += is_residue[code, place : place + len(equal)]
            yield at, others[first:stop], np.maximum.reduceat(equal, starts[:-1]).astype(np.int64)
