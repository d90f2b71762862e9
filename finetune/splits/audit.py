"""The audit: how much of the tested side is known from training, from validation, or from pretraining.

In: parts, records, which of them have labels, what the model was initialized from (its pretraining token stores are
looked up in run.json). Out: `SplitAudit`: counts, and notes on what could not be looked at. Kept: nothing, but
searches, which `data.homology.relatives` keeps beside the token store.

The tested sequences are the queries, and an alignment must cover at least half of the query: a training protein that
contains a tested domain is found, one of which a small piece resembles a part of a long tested protein is not. Local
identities need such a rule; peptides are compared by position (`data.homology.peptides`). For variants of one protein,
all of which are relatives, it counts mutations instead.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from data.homology.mmseqs import why_not_installed
from data.homology.peptides import SHORT
from data.homology.relatives import equal, nearest, search_method
from data.store.token_store import TokenStore
from finetune.splits.parts import TEST, TRAIN, VALIDATION, SplitParts
from finetune.splits.settings import IDENTITIES
from finetune.splits.variants import are_variants, to_nearest
from zymogen.trainer.run.directory import RunDirectory, run_at

_NOT_CHECKED = "overlap with pretraining was not checked"


def pretraining_stores(init: str | None) -> tuple[list[TokenStore], list[str]]:
    """The token stores of the run that an encoder comes from, and of those that this run comes from, as far as known.

    Args:
        init: the directory of a pretraining run, its export, one of its checkpoints, any other folder of weights, or a
            Hub name; None for random weights.

    Returns:
        Stores; and a note for everything that cannot be looked at, so that without a note all was.
    """
    stores: list[TokenStore] = []
    notes: list[str] = []
    seen: set[str] = set()
    while init is not None and init not in seen:
        seen.add(init)
        run = run_at(init) or Path(init)
        name = run.name if run.exists() else init  # as a card says no folder of a machine
        try:
            record = RunDirectory(run).read()
        except ValueError:
            notes.append(f"{_NOT_CHECKED}: {name} lies in no run's directory with a run.json that can be read")
            break
        for part in record.corpus.get("mixture") or [record.corpus]:
            try:
                store = TokenStore(Path(part.get("store", "")))
                _ = store.facts
                stores.append(store)
            except ValueError:
                notes.append(f"{_NOT_CHECKED}: run.json of {name} names no token store that can be read")
        init = record.recipe.get("model", {}).get("init")
    return stores, notes


COVERAGE = 0.5
"""Share of a tested sequence that an alignment must cover."""
PRETRAINING = "pretraining "
"""Begins the name of a pretraining corpus, before its folder."""


@dataclass(frozen=True, slots=True)
class Overlap:
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
    searchable: int = 0
    """Number of tested sequences that the search can find: those with a relative, and those that find themselves."""

    def share(self, identity: float) -> float | None:
        """Share of the searchable sequences that have a relative of at least `identity`; None if it is not known."""
        if identity not in self.identities or not self.searchable:
            return None
        return self.similar[self.identities.index(identity)] / self.searchable


@dataclass(frozen=True, slots=True)
class ConditionOverlap:
    """Tested labels that were measured under conditions, such as the molecule that was added (`tasks.conditions`)."""

    labels: int
    """Number of tested proteins, each as often as it has a condition."""
    condition: int
    """Number of these with a condition that a training label has too,"""
    protein: int
    """with a protein that has a relative in training, at the lowest of the audited identities,"""
    both: int
    """and with both."""


@dataclass(frozen=True, slots=True)
class SplitAudit:
    """What the tested side has in common with the others. Records without a label are on no side."""

    fingerprint: str
    """The fingerprint of the parts that were audited."""
    searched_by: str
    """What looked for relatives."""
    is_approximate: bool
    """Whether shared words stood in for MMseqs2."""
    comparisons: tuple[Overlap, ...]
    distances: tuple[int, ...] | None
    """For variants of one protein: how many tested sequences have 0, 1, 2, ... mutations to the nearest one that
    trains. Otherwise None."""
    notes: tuple[str, ...] = ()
    """What could not be audited."""
    tasks: tuple[Overlap, ...] = ()
    """For each task that is measured on some of the tested sequences alone: these, beside all that train; `against` is
    the task."""
    conditions: ConditionOverlap | None = None
    """None where no task has conditions."""

    @property
    def of_training(self) -> Overlap:
        """The comparison with what trains when a tested sequence is predicted."""
        return self.comparisons[0]


class _Matches(NamedTuple):
    """What was found of tested records; each array is (N,), over all records of the store."""

    is_equal: NDArray[np.bool_]
    identity: NDArray[np.float64]
    is_searchable: NDArray[np.bool_]
    targets: int
    """Records that one was compared with, at most."""


def audit(
    store: TokenStore,
    parts: SplitParts,
    labelled: Mapping[str, NDArray[np.int64]] | None = None,
    identities: Sequence[float] = IDENTITIES,
    init: str | None = None,
    search_pretraining: bool = False,
    conditioned: Collection[str] = (),
) -> SplitAudit:
    """Compare the tested records with those that train, with those that validate, and with a pretraining corpus.

    With folds every record that has one is tested, beside the records of the other folds.

    Args:
        store: the token store of the records.
        parts: their parts.
        labelled: for each task the records that have a label of it: others are not scored, and train nothing. None: all
            records have one.
        identities: identities at which relatives are counted (`SplitSettings.audited_identities`).
        init: what the encoder was initialized from (`model.init`), if anything.
        search_pretraining: whether the pretraining corpus is searched for relatives, besides equal sequences.
        conditioned: the tasks each of which is one condition of several.

    Raises:
        ValueError: MMseqs2 failed.
    """
    identities = tuple(sorted({*identities}))
    everything = np.arange(store.num_records)
    used = everything if labelled is None else np.unique(np.concatenate([*labelled.values(), everything[:0]]))
    sides = [parts.of_fold(fold) for fold in range(parts.num_folds)] or [parts]
    of_sides = [[np.intersect1d(each.records(part), used) for part in (TEST, TRAIN, VALIDATION)] for each in sides]
    tested = np.unique(np.concatenate([test for test, _, _ in of_sides]))
    distances = _to_training(store, of_sides) if are_variants(store) else None
    at = () if distances is not None else identities
    if parts.num_folds:
        # A nearest neighbour searches what trains alone, and the same search is kept for it.
        found = {"the other folds": _found(store, [(test, others) for test, *others in of_sides], store, at)}
    else:
        _, train, validation = of_sides[0]
        found = {"train": _found(store, [(tested, [train])], store, at)}
        if len(validation):
            found["validation"] = _found(store, [(tested, [validation])], store, at)
    comparisons = [_counted(name, tested, each, at) for name, each in found.items()]
    of_training = next(iter(found.values()))
    corpora, notes = pretraining_stores(init)
    wanted = identities if search_pretraining else ()
    comparisons += [compare(f"{PRETRAINING}{each.folder}", store, tested, each, None, wanted) for each in corpora]
    by = search_method() if at or (search_pretraining and corpora) else "equal sequences"
    is_approximate = (
        by != "equal sequences" and bool(why_not_installed()) and bool((store.num_residues(tested) >= SHORT).any())
    )
    of_tasks = [
        _counted(name, np.intersect1d(tested, records), of_training, at) for name, records in (labelled or {}).items()
    ]
    return SplitAudit(
        parts.fingerprint,
        by,
        is_approximate,
        tuple(comparisons),
        distances,
        tuple(notes),
        tuple(each for each in of_tasks if at and 0 < each.queries < len(tested)),
        _of_conditions(of_training, of_sides, [(labelled or {})[name] for name in conditioned], min(identities)),
    )


def compare(
    name: str,
    store: TokenStore,
    tested: NDArray[np.int64],
    against: TokenStore,
    among: Sequence[NDArray[np.int64]] | None,
    identities: tuple[float, ...],
) -> Overlap:
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
    return _counted(name, tested, _found(store, [(tested, among)], against, identities), identities)


def _found(
    store: TokenStore,
    sides: Sequence[tuple[NDArray[np.int64], Sequence[NDArray[np.int64]] | None]],
    against: TokenStore,
    identities: tuple[float, ...],
) -> _Matches:
    """What is found of the tested records of each side among the sets of records that it names, or among all."""
    is_equal, identity = np.zeros(store.num_records, np.bool_), np.zeros(store.num_records)
    is_searchable, targets = np.ones(store.num_records, np.bool_), 0
    for tested, among in sides:
        sets = [None] if among is None else [numbers for numbers in among if len(numbers)]
        targets = max(targets, sum(against.num_records if numbers is None else len(numbers) for numbers in sets))
        for numbers in sets:
            if not identities:
                is_equal[tested] |= equal(store, tested, against, numbers) >= 0
                continue
            found = nearest(store, tested, against, numbers, COVERAGE)
            hit, record = tested[found.record >= 0], found.record[found.record >= 0]
            # Not by the identity: an alignment may be all equal over a part of the query.
            is_equal[hit] |= np.asarray(store.digests)[hit] == np.asarray(against.digests)[record]
            identity[tested] = np.maximum(identity[tested], found.identity)
            is_searchable[tested] &= found.is_searchable
    return _Matches(is_equal, identity, is_searchable | is_equal | (identity > 0), targets)


def _counted(name: str, tested: NDArray[np.int64], found: _Matches, identities: tuple[float, ...]) -> Overlap:
    is_searchable, identity = found.is_searchable[tested], found.identity[tested]
    similar = tuple(int(np.count_nonzero(is_searchable & (identity >= least))) for least in identities)
    searchable = int(np.count_nonzero(is_searchable)) if identities else 0
    equals = int(np.count_nonzero(found.is_equal[tested]))
    return Overlap(name, len(tested), found.targets, equals, identities, similar, searchable)


def _of_conditions(
    found: _Matches,
    sides: Sequence[Sequence[NDArray[np.int64]]],
    labelled: Sequence[NDArray[np.int64]],
    least: float,
) -> ConditionOverlap | None:
    """Tested labels of tasks each of which is a condition.

    With folds a condition is known where a label of another fold has it.
    """
    counts = np.zeros(4, np.int64)
    for records in labelled:
        for test, train, _ in sides:
            tested = np.intersect1d(records, test)
            known = (found.identity[tested] >= least) | found.is_equal[tested]
            has_relative, is_known = known.sum(), bool(np.isin(records, train).any())
            counts += [len(tested), len(tested) * is_known, has_relative, has_relative * is_known]
    return ConditionOverlap(*counts.tolist()) if len(labelled) else None


def _to_training(store: TokenStore, sides: Sequence[Sequence[NDArray[np.int64]]]) -> tuple[int, ...]:
    """How many tested variants have 0, 1, 2, ... mutations to the nearest one that trains."""
    residues = np.asarray(store.tokens).reshape(store.num_records, -1)
    nearest_of = [to_nearest(residues[test], residues[train]) for test, train, _ in sides]
    return tuple(np.bincount(np.concatenate(nearest_of)).tolist())
