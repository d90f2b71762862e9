"""The split that is proposed: the most honest one that the table allows, tried out before it is written.

In: a `DraftData`, column roles. Out: `ProposedSplit`: settings of `[split]`, the reason, findings about relatives.
Kept: what `data.homology` keeps of clusters beside the store, which the run uses too.
"""

import math
import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from data.homology.relatives import related
from finetune.labels.objectives import counts_by_part, labelled_records, objectives
from finetune.labels.read import TaskLabels
from finetune.look.draft_data import DraftData, as_settings
from finetune.look.roles import ColumnRoles
from finetune.splits.audit import audit
from finetune.splits.groups import group_texts, records_in_several_groups
from finetune.splits.parts import TEST, TRAIN, VALIDATION, SplitParts
from finetune.splits.settings import IDENTITIES, LEAST_FOLDS, By, SplitSettings
from finetune.splits.split import split_records
from finetune.splits.text import format_split
from finetune.splits.variants import MutatedPositions, are_mostly_variants, of_rows

FOLDS, LEAST_WITHOUT_FOLDS = 5, 1000
"""Folds that are proposed, and the number of labelled proteins from which on none are."""
_LARGEST_CLUSTER = 0.4
"""Share of the proteins that a cluster may have in a split by homology."""
_LEAST_CLUSTERS, _CLUSTERS_WITHOUT_FOLDS = 15, 100
_RARE = 10
"""Labels, of classes those beside the most frequent one, below which a task decides no split; no metric takes them."""
_LEAST_YEARS, _YEAR = 2, re.compile(r"(?:19|20)\d\d(?!\d)")
_MOST_TORN = 0.1
"""Share of the sequences that may be left out as they are in several of the folds that a table gives."""
_LEAST_TESTED = 20
"""Labelled proteins of a test part, also of the table's own; below, folds test every protein."""
_LEAST_FOR_ONE_PART = 10 * _LEAST_TESTED
"""Labelled proteins of the output that has most of them; below, folds test every protein."""
_MOST_MIXED = 0.3
"""Share of variants with mutations on two sides, which a split by position would not use."""
_MOST_SEARCHED = 60_000
"""Proteins up to which relatives are looked for before the recipe is written, which takes about a minute."""


@dataclass
class ProposedSplit:
    """A split as it is proposed."""

    settings: dict[str, Any]
    reason: str
    parts: SplitParts | None = None
    """None of a split that was not tried."""
    audited: str = ""
    """The split in the words that its audit allows; empty where relatives are not looked for, or nothing is tested."""
    labelled: int = 0
    """Records with a label."""
    rejected: list[str] = field(default_factory=list)
    """Splits that were tried first, with what is against them."""
    alternatives: list[str] = field(default_factory=list)
    """Other splits that the table allows."""
    left_out: dict[str, str] = field(default_factory=dict)
    """Task -> why it cannot be trained, of those with a few labels."""

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


_Candidate = tuple[dict[str, Any], str]
"""Settings of a split, and the reason for it."""


def propose_split(draft: DraftData, roles: ColumnRoles, named: Sequence[str] = ()) -> ProposedSplit:
    """The first candidate with which every task can be trained, validated and tested.

    Tasks of a few labels decide nothing: where they alone cannot be trained, they are left out of `draft`.

    Args:
        draft: proteins and labels.
        roles: of the columns.
        named: columns that the user named as tasks, which stay.

    Raises:
        ValueError: no split is possible, not even a random one; the message is that of the last one.
    """
    variants = draft.proteins.mutated is not None or are_mostly_variants(draft.store)
    mutations = of_rows(draft.records, draft.proteins.mutated, draft.proteins.wild_types)
    may_search = variants or draft.proteins.num_records <= _MOST_SEARCHED
    rejected: dict[str, str] = {}
    last: ValueError | None = None
    for settings, reason in _candidates(draft, roles, variants, may_search):
        if settings["by"] == "homology" and not may_search:
            found = ProposedSplit(
                settings, f"{reason}; not tried here, as finding them takes long: the run does it first"
            )
        else:
            try:
                found = _tried(draft, settings, reason, mutations, named, may_search=may_search)
            except ValueError as error:
                last = error
                rejected[_name(settings)] = str(error).replace(f"{draft.records.table.name}: ", "")
                continue
        rejected.pop(_name(settings), None)  # refused without the setting that says what becomes of conflicts
        draft.leave_out(found.left_out)
        others, labelled = _alternatives(draft, roles, variants, settings["by"]), int(draft.is_labelled.sum())
        against = [f"{name}: {why}" for name, why in rejected.items()]
        return replace(found, labelled=labelled, rejected=against, alternatives=others)
    assert last is not None
    raise last


def _candidates(draft: DraftData, roles: ColumnRoles, variants: bool, may_search: bool) -> Iterator[_Candidate]:
    """Splits from the one that is preferred to the one that is always possible: settings and the reason."""
    labelled = int(draft.is_labelled.sum())
    in_folds = f"in {FOLDS} folds each is tested once, by a model that did not see it"
    folds, few = dict[str, Any](), ""
    counts = {name: len(of) for name, of in labelled_records(draft.tasks).items()}
    name = max(counts, key=lambda name: counts[name])
    if labelled < LEAST_WITHOUT_FOLDS or counts[name] < _LEAST_FOR_ONE_PART:
        said = f"the {counts[name]:,} proteins with a label of {name!r}, which has most,"
        said = f"{labelled:,} labelled proteins" if labelled < LEAST_WITHOUT_FOLDS else said
        folds, few = {"folds": FOLDS}, f"; {said} are too few for one test part: {in_folds}"
    for more in ({}, {"conflict": "held_out"}) if roles.split.by_part else ():
        yield (roles.split.by_part | more, "the table says which rows train and which are tested")
    if by_fold := roles.split.by_fold:
        torn = records_in_several_groups(draft.records, group_texts(draft.records, by_fold["column"]))
        conflict = {"conflict": "unused"} if 0 < len(torn) <= _MOST_TORN * draft.records.count else {}
        yield (by_fold | conflict, "the folds that the table gives")
    if variants:
        proteins = len({*filter(None, draft.proteins.wild_types or ())})
        of = f"each of {proteins:,} proteins" if proteins > 1 else "one protein"
        said = f"variants of {of}: what is tested is mutated at positions that no training row changes"
        yield ({"by": "position", **folds}, said + few)
    elif may_search and draft.proteins.num_records > 1:
        median = max(2.0, float(np.median(draft.proteins.num_residues)))
        # The last one lets one residue differ in short peptides, too.
        for identity in (*IDENTITIES[:-1], min(IDENTITIES[-1], math.floor(100 * (1 - 1 / median)) / 100)):
            sizes = np.unique(related(draft.store, identity).hashes, return_counts=True)[1]
            if len(sizes) < _LEAST_CLUSTERS or sizes.max() > _LARGEST_CLUSTER * draft.proteins.num_records:
                continue
            said = f"{len(sizes):,} clusters of relatives at {identity:.0%} identity, held out whole"
            if sizes.max() == 1:
                said = f"each protein is a cluster of its own at {identity:.0%} identity"
            of_folds, why = folds, few
            if not folds and len(sizes) < _CLUSTERS_WITHOUT_FOLDS:
                of_folds, why = {"folds": FOLDS}, f"; so few clusters do not fill a test part: {in_folds}"
            yield ({"by": "homology", "identity": identity, **of_folds}, said + why)
    elif draft.proteins.num_records > 1:
        yield ({"by": "homology", "identity": IDENTITIES[0]}, "relatives at 30% identity are held out together")
    for name in [] if folds else _dates(roles):
        years = [int(year) for text in draft.records.table.column(name) for year in _YEAR.findall(text or "")]
        if max(years, default=0) - min(years, default=0) >= _LEAST_YEARS:
            said = f"dates of {min(years)} to {max(years)}: what was measured earlier trains, later is tested"
            yield ({"by": "time", "column": name}, said)
    for name in roles.groups:
        yield ({"by": "group", "column": name, **folds}, f"groups of {name!r} are held out whole{few}")
    said = "at random, the optimistic one: relatives of what is tested may train"
    yield ({"by": "random", **folds}, said + few)
    yield ({"by": "random", "folds": LEAST_FOLDS}, f"{said}; of so few labels, {LEAST_FOLDS} folds")
    said = "everything trains, as no split holds any out: its scores are those of training"
    yield ({"by": "random", "fractions": [1.0, 0.0, 0.0]}, said)


def _dates(roles: ColumnRoles) -> list[str]:
    return [name for name, (role, _) in roles.of.items() if role == "date"]


def _alternatives(draft: DraftData, roles: ColumnRoles, variants: bool, chosen: str) -> list[str]:
    """Other splits that the columns allow, as the user would write them."""
    dates, molecules = _dates(roles), [name for name, (role, _) in roles.of.items() if role == "molecule"]
    possible: list[tuple[By, str, str]] = [("time", name, "earlier rows train, later are tested") for name in dates]
    possible += [("scaffold", name, "molecules of one scaffold are held out together") for name in molecules]
    found = []
    for by, name, said in possible:
        with suppress(ValueError):  # it cannot be made of this table
            if by != chosen:
                split_records(SplitSettings(by=by, column=name), draft.records)
                found.append(f'split.by = "{by}", column = "{name}": {said}')
    counts = [len(residues) for residues in draft.proteins.mutated or ()]
    if variants and min(counts.count(1), sum(count > 1 for count in counts)) >= _LEAST_TESTED:
        found.append('split.by = "distance", distance = 1: single mutants train, others are tested')
    return found


def _tried(
    draft: DraftData,
    settings: dict[str, Any],
    reason: str,
    mutations: MutatedPositions | None,
    named: Sequence[str],
    *,
    may_search: bool,
) -> ProposedSplit:
    """The split by a candidate, with a validation part that is drawn where the table's own split has none.

    Raises:
        ValueError: a part is empty or has too few labels, a task cannot be trained on one, or too much is unused.
    """
    split, more, said = SplitSettings(**as_settings(settings)), dict[str, Any](), ""
    division = split_records(split, draft.records, draft.proteins.ids, mutations)
    if split.by == "column" and not len(division.parts.records(VALIDATION)):
        training = np.count_nonzero(draft.is_labelled & (division.parts.part == TRAIN))
        share = 0.1 if training >= LEAST_WITHOUT_FOLDS / 2 else 0.2
        said = f"; it has no validation part, so that {share:.0%} of what would train validates"
        more, split = {"validation_fraction": share}, replace(split, validation_fraction=share)
        if may_search:
            division = split_records(split, draft.records, draft.proteins.ids, mutations)
    said += "".join(f"; {note}" for note in division.notes if "have rows in two" in note)
    parts, has_record = division.parts, draft.records.of_row >= 0
    if (has_record & ~division.used).any():
        draft = draft.of_rows(division.used)
    sides = [parts.of_fold(fold) for fold in range(parts.num_folds)] or [parts]
    left_out = _too_rare(draft.tasks, sides, named)
    draft = replace(draft, tasks=[task for task in draft.tasks if task.settings.name not in left_out])
    for each in sides if split.fractions[2] else []:
        validation, test = (_most_labels(draft.tasks, each.part == part) for part in (VALIDATION, TEST))
        if not test or not (validation or (more and not may_search)):
            raise ValueError(f"no label is {'in validation' if test else 'tested'}")
        if not parts.num_folds and test < _LEAST_TESTED:
            raise ValueError(f"{test:,} tested labels are too few to judge a model by; {_LEAST_TESTED} are needed")
        if split.by == "position":
            used = np.isin(each.part, (TRAIN, VALIDATION, TEST)).mean()
            if used < 1 - _MOST_MIXED:
                raise ValueError(f"{1 - used:.0%} of the variants have mutations of several parts, and would be unused")
    audited = ""
    if may_search and split.fractions[2]:
        labelled = labelled_records(draft.tasks)
        of_conditions = labelled_records([task for task in draft.tasks if task.settings.conditions])
        known = labelled.keys() & of_conditions.keys()
        found = audit(draft.store, parts, labelled, split.audited_identities, conditioned=known)
        audited = format_split(split, division, found)
    return ProposedSplit({**settings, **more}, reason + said, parts, audited, left_out=left_out)


def _most_labels(tasks: Sequence[TaskLabels], part: NDArray[np.bool_]) -> int:
    """Labels in a part, of the task that has most of them there."""
    return max(int(counts_by_part(task, {"": part})[""].max(initial=0)) for task in tasks)


def _too_rare(tasks: Sequence[TaskLabels], sides: Sequence[SplitParts], named: Sequence[str]) -> dict[str, str]:
    """Tasks of a few labels that cannot be trained on some side, each with the reason.

    Raises:
        ValueError: a task of more labels cannot be trained, or one that the user named, or none can.
    """
    found: dict[str, str] = {}
    for task in tasks:
        values, name = task.labels.values, task.settings.name
        few = len(values) - (int(np.bincount(values.astype(np.int64)).max(initial=0)) if task.classes else 0)
        for each in sides:
            try:
                objectives([task], each.part == TRAIN)
            except ValueError:
                if few >= _RARE or {*task.settings.columns, name} & {*named}:
                    raise
                beside = " beside those of its most frequent class" if task.classes else ""
                found[name] = f"{few} labels{beside} are too few for a split"
                break
    if len(found) == len(tasks):
        raise ValueError("; ".join(f"{name}: {why}" for name, why in found.items()))
    return found


def _name(settings: dict[str, Any]) -> str:
    words = f"by {settings['by']}"
    words += f" {settings['column']!r}" if "column" in settings else ""
    words += f" at {settings['identity']:.0%}" if "identity" in settings else ""
    return words + (f" in {settings['folds']} folds" if "folds" in settings else "")
