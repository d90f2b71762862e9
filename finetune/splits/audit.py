"""The audit: how much of the tested side is known from training, from validation, or from pretraining.

In: parts, records, a pretrained run. Out: `Audit`: counts. Kept: nothing.

The tested sequences are the queries, and an alignment must cover at least half of the query: a training protein that
contains a tested domain is found, one of which a small piece resembles a part of a long tested protein is not. Local
identities need such a rule. For variants of one protein, all of which are relatives, it counts mutations instead.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from data.homology.program import obstacle
from data.homology.relatives import equal, nearest, searched_by
from data.store.token_store import Store
from finetune.splits.parts import TEST, TRAIN, VALIDATION, Parts
from finetune.splits.settings import IDENTITIES
from finetune.splits.variants import are_variants, to_nearest
from pretrain.run.directory import RunDirectory

if TYPE_CHECKING:
    from collections.abc import Sequence

COVERAGE = 0.5
"""Share of a tested sequence that an alignment must cover."""
PRETRAINING = "pretraining "
"""Begins the name of a pretraining corpus, before its folder."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """The tested sequences beside one set of others."""

    against: str
    """The set: "train", "validation", "the other folds", or a pretraining corpus."""
    queries: int
    """Number of tested sequences."""
    targets: int
    """Number of sequences of the set."""
    equal: int
    """Number of tested sequences that are in the set."""
    identities: tuple[float, ...] = ()
    """Identities at which relatives were counted; empty where only equal sequences were looked for."""
    similar: tuple[int, ...] = ()
    """For each of `identities`, number of tested sequences with a relative of at least that, equal ones included."""

    def share(self, identity: float) -> float | None:
        """Share of the tested sequences that have a relative of at least `identity`; None if that was not counted."""
        if identity not in self.identities or not self.queries:
            return None
        return self.similar[self.identities.index(identity)] / self.queries


@dataclass(frozen=True, slots=True)
class Audit:
    """What the tested side has in common with the others."""

    fingerprint: str
    """The fingerprint of the parts that were audited."""
    searched_by: str
    """What looked for relatives."""
    is_approximate: bool
    """Whether shared words stood in for MMseqs2."""
    comparisons: tuple[Comparison, ...]
    distances: tuple[int, ...] | None
    """For variants of one protein: how many tested sequences have 0, 1, 2, ... mutations to the nearest one that
    trains. Otherwise None."""
    notes: tuple[str, ...] = ()
    """What could not be audited."""

    def of(self, against: str) -> Comparison | None:
        """The comparison with one set, if it was made."""
        return next((found for found in self.comparisons if found.against == against), None)

    @property
    def of_training(self) -> Comparison:
        """The comparison with what trains when a tested sequence is predicted."""
        return self.comparisons[0]


def audit(
    store: Store,
    parts: Parts,
    identities: "Sequence[float]" = IDENTITIES,
    pretrained: Path | None = None,
    search_pretraining: bool = False,
) -> Audit:
    """Compare the tested records with those that train, with those that validate, and with a pretraining corpus.

    With folds every record that has one is tested, beside the records of the other folds.

    Args:
        store: the token store of the records.
        parts: their parts.
        identities: identities at which relatives are counted (`SplitSettings.audited_identities`).
        pretrained: the directory of the run whose weights are fine-tuned, if they come from one.
        search_pretraining: whether the pretraining corpus is searched for relatives, besides equal sequences.

    Raises:
        ValueError: MMseqs2 failed; nothing is tested.
    """
    identities = tuple(sorted({*identities}))
    sides = [parts.of_fold(fold) for fold in range(parts.num_folds)] or [parts]
    tested = np.unique(np.concatenate([each.records(TEST) for each in sides]))
    if not len(tested):
        raise ValueError("the split tests no record, so there is nothing to audit; give test a share, or folds")
    distances = _to_training(store, sides) if are_variants(store) else None
    at = () if distances is not None else identities
    if parts.num_folds:
        name = "the other folds"
        of_folds = [compare(name, store, each.records(TEST), store, _others(each), at) for each in sides]
        comparisons = [_sum(of_folds)]
    else:
        named = {"train": parts.records(TRAIN), "validation": parts.records(VALIDATION)}
        comparisons = [
            compare(name, store, tested, store, (others,), at)
            for name, others in named.items()
            if name == "train" or len(others)
        ]
    found, notes = pretraining_stores(pretrained) if pretrained else ([], [])
    for corpus in found:
        wanted = identities if search_pretraining else ()
        comparisons.append(compare(f"{PRETRAINING}{corpus.folder}", store, tested, corpus, None, wanted))
    by = searched_by() if at or (search_pretraining and found) else "equal sequences"
    is_approximate = by != "equal sequences" and bool(obstacle())
    return Audit(parts.fingerprint, by, is_approximate, tuple(comparisons), distances, tuple(notes))


def pretraining_stores(run: Path) -> tuple[list[Store], list[str]]:
    """The token stores that a run's run.json names, and a note for each that is not there.

    Raises:
        ValueError: there is no run.json, or it is of another program, or names no corpus.
    """
    corpus = RunDirectory(run).read().corpus
    named = [part["store"] for part in corpus.get("mixture") or [corpus] if "store" in part]
    if not named:
        raise ValueError(f"{run} names no corpus; give the directory of a run of `python -m pretrain`")
    stores, notes = [], []
    for folder in named:
        try:
            store = Store(Path(folder))
            _ = store.facts
            stores.append(store)
        except ValueError as error:
            notes.append(f"the pretraining corpus was not compared: {error}")
    return stores, notes


def compare(
    name: str,
    store: Store,
    tested: NDArray[np.int64],
    against: Store,
    among: tuple[NDArray[np.int64], ...] | None,
    identities: tuple[float, ...],
) -> Comparison:
    """Tested records beside others, which may be of another store.

    Args:
        name: what the others are called.
        store: the store of the tested records.
        tested: (n,) their numbers.
        against: the store of the others.
        among: (m,) numbers of some of them, searched one set after the other; None for all of the store.
        identities: identities at which relatives are counted; without any only equal sequences are looked for.

    Raises:
        ValueError: MMseqs2 failed; the message has the end of its output.
    """
    sets = [None] if among is None else [numbers for numbers in among if len(numbers)]
    targets = sum(against.num_records if numbers is None else len(numbers) for numbers in sets)
    is_equal, identity = np.zeros(len(tested), np.bool_), np.zeros(len(tested))
    for numbers in sets:
        if identities:
            found = nearest(store, tested, against, numbers, COVERAGE)
            hit = found.record >= 0
            # Not by the identity: an alignment may be all equal over a part of the query.
            is_equal[hit] |= np.asarray(store.digests)[tested[hit]] == np.asarray(against.digests)[found.record[hit]]
            identity = np.maximum(identity, found.identity)
        else:
            is_equal |= equal(store, tested, against, numbers) >= 0
    similar = tuple(int(np.count_nonzero(identity >= least)) for least in identities)
    return Comparison(name, len(tested), targets, int(np.count_nonzero(is_equal)), identities, similar)


def _sum(of_folds: "Sequence[Comparison]") -> Comparison:
    """The comparisons of all folds as one."""
    first = of_folds[0]
    return Comparison(
        first.against,
        sum(each.queries for each in of_folds),
        max(each.targets for each in of_folds),
        sum(each.equal for each in of_folds),
        first.identities,
        tuple(map(sum, zip(*(each.similar for each in of_folds), strict=True))),
    )


def _others(parts: Parts) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The records that train, which a nearest neighbour searches too, and those that validate."""
    return parts.records(TRAIN), parts.records(VALIDATION)


def _to_training(store: Store, sides: "Sequence[Parts]") -> tuple[int, ...]:
    """How many tested variants have 0, 1, 2, ... mutations to the nearest one that trains."""
    residues = np.asarray(store.tokens).reshape(store.num_records, -1)
    nearest_of = [to_nearest(residues[each.records(TEST)], residues[each.records(TRAIN)]) for each in sides]
    return tuple(np.bincount(np.concatenate(nearest_of)).tolist())
