"""The split that is proposed: the most honest one that the table allows, tried out before it is written.

In: what was opened, roles. Out: `Divided`: settings of `[split]`, the reason, what was found about relatives. Kept:
what `data.homology` keeps of clusters beside the store, which the run uses too.
"""

import math
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from data.homology import program
from data.homology.relatives import groups_within, related
from data.resources import resources
from data.store.derived import found_at
from finetune.labels.objectives import objectives
from finetune.look.opened import Opened
from finetune.look.roles import Roles
from finetune.splits.divide import divide
from finetune.splits.parts import TEST, TRAIN, VALIDATION, Parts
from finetune.splits.settings import IDENTITIES, SplitSettings
from finetune.splits.variants import Mutations, are_variants, of_rows
from pretrain.proposal import rules
from pretrain.proposal.reasons import duration

FOLDS, LEAST_WITHOUT_FOLDS = 5, 1000
"""Folds that are proposed, and the number of labelled proteins from which on none are."""
_LARGEST_CLUSTER = 0.4
"""Share of the proteins that a cluster may have in a split by homology."""
_LEAST_CLUSTERS = 15
_MOST_MIXED = 0.3
"""Share of variants with mutations on two sides, which a split by position would not use."""
_MOST_CLUSTERING_S = 60.0
"""Expected time of clustering with MMseqs2 up to which relatives are looked for before the recipe is written."""
_MOST_BY_WORDS = 60_000
"""The same where shared words stand in for it: proteins."""


class Relatives(NamedTuple):
    """What was found about relatives within a table."""

    shares: dict[float, float]
    """Identity -> share of the proteins that have a relative of at least that among the others."""
    groups: dict[float, NDArray[np.int64]]
    """Identity -> (N,) cluster of each protein."""
    by: str
    seconds: float


@dataclass
class Divided:
    """A split as it is proposed."""

    settings: dict[str, Any]
    reason: str
    parts: Parts | None
    """None of a split that was not tried."""
    relatives: Relatives | None
    is_variants: bool
    labelled: int
    """Records with a label."""
    rejected: list[str] = field(default_factory=list)
    """Splits that were tried first, with what is against them."""
    would_take: float = 0.0
    """Seconds in which relatives would be found, where they were not looked for."""

    @property
    def counts(self) -> tuple[int, int, int]:
        """Records that train, validate and are tested, in the first fold if there are folds.

        By the shares of the settings where the split was not tried.
        """
        if self.parts is None:
            train, validation, test = (round(self.labelled * share) for share in SplitSettings(by="random").fractions)
            return max(1, train), validation, test
        parts = self.parts.of_fold(0) if self.parts.num_folds else self.parts
        train, validation, test = (int(np.count_nonzero(parts.part == part)) for part in (TRAIN, VALIDATION, TEST))
        return train, validation, test

    @property
    def num_training(self) -> int:
        """Records that train."""
        return self.counts[0]


_Candidate = tuple[dict[str, Any], str]
"""Settings of a split, and the reason for it."""


def divided(opened: Opened, roles: Roles) -> Divided:
    """The first candidate with which every task can be trained and validated.

    Raises:
        ValueError: no split is possible, not even a random one; the message is that of the last one.
    """
    variants = opened.proteins.mutated is not None or are_variants(opened.store)
    mutations = None
    if opened.proteins.mutated is not None and opened.proteins.wild_types is not None:
        mutations = of_rows(opened.records, opened.proteins.mutated, opened.proteins.wild_types)
    found, labelled = None, int(opened.is_labelled.sum())
    would_take = 0.0 if variants else clustering_seconds(opened)
    if not variants and opened.proteins.num_records > 1 and would_take <= _MOST_CLUSTERING_S:
        found = _relatives(opened)
    rejected: list[str] = []
    last: ValueError | None = None
    for settings, reason in _candidates(opened, roles, variants, found):
        if settings["by"] == "homology" and found is None:
            said = f"; not tried here, as finding them takes {takes(would_take)}: the run does it first"
            return Divided(settings, reason + said, None, None, variants, labelled, rejected, would_take)
        try:
            parts = _tried(opened, settings, mutations)
        except ValueError as error:
            last = error
            rejected.append(f"{_name(settings)}: {str(error).replace(f'{opened.records.table.name}: ', '')}")
            continue
        return Divided(settings, reason, parts, found, variants, labelled, rejected, would_take)
    assert last is not None
    raise last


def takes(seconds: float) -> str:
    """How long finding relatives takes, in words."""
    return f"about {duration(seconds)}" if seconds < math.inf else "long without MMseqs2"


def clustering_seconds(opened: Opened) -> float:
    """Time in which relatives are found, as it is expected; 0 where they are known or shared words find them."""
    store, count = opened.store, opened.proteins.num_records
    if program.obstacle():
        return 0.0 if count <= _MOST_BY_WORDS else math.inf
    if found_at(store, f"clusters-mmseqs-{IDENTITIES[0]!r}-"):
        return 0.0
    return rules.cluster_seconds(float(opened.proteins.num_residues.sum()), count, resources().cores)


def _relatives(opened: Opened) -> Relatives:
    """Clusters at the lowest identity, which a run uses too; those at higher ones lie within them."""
    began, store = time.monotonic(), opened.store
    clustering = related(store, IDENTITIES[0])
    whole = np.unique(clustering.hashes, return_inverse=True)[1].astype(np.int64)
    groups = {identity: np.arange(len(whole)) for identity in IDENTITIES} | {IDENTITIES[0]: whole}
    within = np.flatnonzero(np.bincount(whole)[whole] > 1)
    for identity, of in groups_within(store, within, IDENTITIES[1:]).items():
        numbers = np.arange(len(whole))
        numbers[within] = len(whole) + of
        groups[identity] = np.unique(numbers, return_inverse=True)[1].astype(np.int64)
    shares = {identity: float((np.bincount(of)[of] > 1).mean()) for identity, of in groups.items()}
    by = f"shared words, as {program.obstacle()}" if clustering.is_approximate else "MMseqs2"
    return Relatives(shares, groups, by, time.monotonic() - began)


def _candidates(
    opened: Opened, roles: Roles, variants: bool, found: Relatives | None
) -> Iterator[tuple[dict[str, Any], str]]:
    """Splits from the one that is preferred to the one that is always possible: settings and the reason."""
    labelled = int(opened.is_labelled.sum())
    folds: dict[str, Any] = {"folds": FOLDS} if labelled < LEAST_WITHOUT_FOLDS else {}
    few = f"; {labelled:,} labelled proteins are few, so that each is predicted once, in one of {FOLDS} folds"
    if roles.part is not None:
        settings: dict[str, Any] = {"by": "column", "column": roles.part, **roles.part_words}
        settings |= {"validation_column": roles.validation} if roles.validation else {}
        yield (settings, "the table says which rows train and which are tested")
        said = "the table says which rows train and which are tested; a sequence in two parts is in the tested one"
        yield ({**settings, "conflict": "held_out"}, said)
    if roles.fold is not None:
        number = len({text for text in opened.records.table.column(roles.fold) if text and text.strip()})
        if number >= 3:
            yield ({"by": "group", "column": roles.fold, "folds": number}, "the folds that the table gives")
    if variants:
        said = "variants of one protein: what is tested is mutated at positions that no training row changes"
        for of_folds, more in ((folds, few), ({}, "")) if folds else (({}, ""),):
            yield ({"by": "position", **of_folds}, said + more)
    elif found is not None:
        for identity in IDENTITIES:
            sizes = np.bincount(found.groups[identity])
            if len(sizes) < _LEAST_CLUSTERS or sizes.max() > _LARGEST_CLUSTER * len(found.groups[identity]):
                continue
            said = f"{len(sizes):,} clusters of relatives at {identity:.0%} identity, held out whole"
            if sizes.max() == 1:
                said = f"no two proteins are relatives at {identity:.0%} identity, so that no relative of one trains"
            for of_folds, more in ((folds, few), ({}, "")) if folds else (({}, ""),):
                yield ({"by": "homology", "identity": identity, **of_folds}, said + more)
    elif opened.proteins.num_records > 1:
        yield ({"by": "homology", "identity": 0.3}, "relatives at 30% identity are held out together")
    for name in roles.groups:
        yield ({"by": "group", "column": name, **folds}, f"groups of {name!r} are held out whole")
    said = "at random, the optimistic one: relatives of what is tested train"
    if folds:
        yield ({"by": "random", **folds}, said + few)
    yield ({"by": "random"}, said)
    said = "at random, and without validation, as the table has too few rows: take its scores for nothing"
    yield ({"by": "random", "fractions": [0.8, 0.0, 0.2]}, said)
    said = "everything trains, as the table has too few rows to hold any out: its scores are those of training"
    yield ({"by": "random", "fractions": [1.0, 0.0, 0.0]}, said)


def _tried(opened: Opened, settings: dict[str, Any], mutations: Mutations | None) -> Parts:
    """The parts by a candidate.

    Raises:
        ValueError: a part is empty, a task cannot be trained on one, or too much is unused.
    """
    given: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value for name, value in settings.items()
    }
    split = SplitSettings(**given)
    division = divide(split, opened.records, opened.proteins.ids, mutations)
    parts, has_record = division.parts, opened.records.of_row >= 0
    if (has_record & ~division.used).any():
        opened = opened.of_rows(division.used)
    labelled = opened.is_labelled
    for each in [parts.of_fold(fold) for fold in range(parts.num_folds)] or [parts]:
        objectives(opened.tasks, each.part == TRAIN)
        for part in (VALIDATION, TEST):
            wanted = split.fractions[1 if part == VALIDATION else 2] and (part == TEST or split.by not in ("column",))
            if wanted and not (labelled & (each.part == part)).any():
                raise ValueError("a part has no label")
        if split.by == "position":
            used = np.isin(each.part, (TRAIN, VALIDATION, TEST)).mean()
            if used < 1 - _MOST_MIXED:
                raise ValueError(f"{1 - used:.0%} of the variants have mutations on two sides, and would not be used")
    return parts


def _name(settings: dict[str, Any]) -> str:
    words = f"by {settings['by']}"
    words += f" {settings['column']!r}" if "column" in settings else ""
    words += f" at {settings['identity']:.0%}" if "identity" in settings else ""
    return words + (f" in {settings['folds']} folds" if "folds" in settings else "")
