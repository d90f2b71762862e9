"""The split of a table's records: the one function that every split goes through.

In: settings, records. Out: `Split`: the parts, what decided them, and notes on what was left out. Kept: nothing,
except clusters beside the store.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from finetune.splits import split_file
from finetune.splits.balance import balance_groups
from finetune.splits.columns import by_column, by_time
from finetune.splits.groups import by_group, by_homology, by_scaffold
from finetune.splits.parts import NO_FOLD, TRAIN, UNUSED, VALIDATION, SplitParts, SplitRecords, parts_of, require_filled
from finetune.splits.settings import SplitSettings
from finetune.splits.variants import MutatedPositions, are_mostly_variants, by_distance, by_position, of_sequences

_ADVICE = {
    "homology": "choose a higher split.identity, so that clusters are smaller, or other split.fractions",
    "column": "check the values of split.column, or name them in split.train, split.validation and split.test",
    "time": "choose other split.cuts, or other split.fractions",
    "distance": "choose another split.distance; the numbers of mutations are listed in the notes of the split",
    "file": "give records of that part in split.file",
}


@dataclass(frozen=True, slots=True)
class Split:
    """A split, and how it was made."""

    parts: SplitParts
    method: str
    """What decided it, such as the version of MMseqs2 with its settings, or the name of a column."""
    is_approximate: bool
    """Whether relatives were found by shared words, as MMseqs2 could not run."""
    notes: tuple[str, ...]
    """Sentences for the user: what was left out, or decided."""
    used: NDArray[np.bool_] = field(default_factory=lambda: np.ones(1, np.bool_))
    """(rows,) whether a row gives labels: its record has a part, and the row is in it. No other rows do."""


def split_records(
    settings: SplitSettings,
    records: SplitRecords,
    ids: Sequence[str] = (),
    mutations: MutatedPositions | None = None,
) -> Split:
    """The parts of all records. They depend on the settings and on the records' contents alone.

    Args:
        settings: the recipe's `[split]`.
        records: the records; with a token store for 'homology', 'position' and 'distance'.
        ids: (N,) id of each record, for 'file'.
        mutations: for 'position' and 'distance': `variants.of_sequences` or `variants.of_rows`; without them, sequences
            are compared with the most frequent residue at each position.

    Raises:
        ValueError: the table lacks what decides; a record or a group is on two sides; a part that was asked for would
            be empty, with the counts of all.
    """
    division = _with_validation(settings, records, _divided(settings, records, ids, mutations), mutations)
    given = settings.by in ("column", "file", "time", "distance")
    named = zip(("train", "validation", "test"), settings.fractions, strict=True)
    wanted = ["train", "test"] if given else [name for name, share in named if share]
    advice = "choose fewer folds or a larger table" if settings.folds else "choose other split.fractions"
    require_filled(division.parts, wanted, _ADVICE.get(settings.by, advice), settings.folds)
    has_part = np.append(division.parts.part != UNUSED, False)  # the last one is that of rows without a record
    return replace(division, used=division.used & has_part[records.of_row])


def _divided(
    settings: SplitSettings, records: SplitRecords, ids: Sequence[str], mutations: MutatedPositions | None
) -> Split:
    if settings.by == "file":
        assert settings.file is not None
        parts, listed = split_file.read(Path(settings.file), ids, records.digests)
        return Split(parts, f"taken from {settings.file}", False, tuple(listed))
    if settings.by in ("column", "time"):
        part, used, notes = (by_column if settings.by == "column" else by_time)(records, settings)
        by = f"{settings.by} {settings.column!r}"
        return Split(parts_of(records.digests, part), by, False, tuple(notes), used)
    if settings.by in ("position", "distance"):
        return _of_variants(settings, records, mutations)
    group, method, notes = np.arange(records.count), "drawn at random", []
    is_approximate, used = False, np.ones(len(records.of_row), np.bool_)
    if settings.by == "group":
        group, notes, used = by_group(records, settings)
        method = f"groups of column {settings.column!r}"
    elif settings.by == "scaffold":
        group, notes, used = by_scaffold(records, settings)
        method = f"Bemis-Murcko scaffolds of column {settings.column!r}"
    elif settings.by == "homology":
        group, method, is_approximate = by_homology(records, settings)
    is_used = np.isin(np.arange(records.count), records.of_row[used])
    side = np.full(records.count, -1)  # of one that is not used
    if is_used.any():
        of_used = np.unique(group[is_used], return_inverse=True)[1]
        side[is_used] = balance_groups(of_used, records.digests[is_used], _shares(settings), settings.seed)[of_used]
    sizes = np.unique(group[is_used], return_counts=True)[1]
    notes.append(f"{sizes.sum():,} records in {len(sizes):,} groups, the largest of {sizes.max(initial=0):,}")
    return Split(_sides(settings, records, side, group), method, is_approximate, tuple(notes), used)


def _with_validation(
    settings: SplitSettings, records: SplitRecords, division: Split, mutations: MutatedPositions | None
) -> Split:
    """A split that has no validation part of its own, with one that is drawn from training by whole relatives."""
    parts, share = division.parts, settings.validation_fraction
    if settings.by == "time" and not settings.cuts:  # asked for, and no time lies between the two cuts
        share = share or settings.fractions[1] / (settings.fractions[0] + settings.fractions[1])
    train = parts.records(TRAIN)
    if not share or parts.num_folds or len(train) < 2 or len(parts.records(VALIDATION)):
        return division
    group, by = _relatives(settings, records, parts.group, mutations)
    numbers = np.unique(group[train], return_inverse=True)[1]
    if 2 * np.bincount(numbers).max() > len(train):  # one cluster would be most of it
        numbers, by = np.arange(len(train)), "records"
    side = balance_groups(numbers, records.digests[train], (1 - share, share), settings.seed)[numbers]
    part = parts.part.copy()
    part[train[side == 1]] = VALIDATION
    note = f"{np.count_nonzero(side):,} of {len(train):,} training records validate, drawn by {by}"
    return replace(division, parts=parts_of(records.digests, part, parts.group), notes=(*division.notes, note))


def _relatives(
    settings: SplitSettings, records: SplitRecords, group: NDArray[np.int64], mutations: MutatedPositions | None
) -> tuple[NDArray[np.int64], str]:
    """(N,) what is drawn together, and its name: the split's own groups, mutated positions, clusters, or records."""
    if len(np.unique(group)) < len(group) or records.store is None:
        return group, "groups of the split" if len(np.unique(group)) < len(group) else "records"
    if mutations is not None or are_mostly_variants(records.store):
        mutations = mutations or of_sequences(records, None, f"split.by = {settings.by!r}")
        return mutations.lowest, "mutated position"
    return by_homology(records, settings)[0], f"clusters of relatives at {settings.identity:.0%} identity"


def _of_variants(settings: SplitSettings, records: SplitRecords, mutations: MutatedPositions | None) -> Split:
    notes = [] if mutations else ["no wild type is given: mutations are counted from the most frequent residues"]
    mutations = mutations or of_sequences(records, None, f"split.by = {settings.by!r}")
    if settings.by == "distance":
        part, of_split = by_distance(mutations, records.digests, settings.distance, settings.fractions, settings.seed)
        method = f"up to {settings.distance} mutations train, more are tested"
        return Split(parts_of(records.digests, part), method, False, (*notes, *of_split))
    side, of_split = by_position(mutations, records.digests, _shares(settings), settings.seed)
    # Substitutions of one residue fare alike, so that an interval leaves them out together.
    parts = _sides(settings, records, side, mutations.lowest, mutations.is_parent)
    return Split(parts, "positions that are mutated", False, (*notes, *of_split))


def _shares(settings: SplitSettings) -> tuple[float, ...]:
    return (1 / settings.folds,) * settings.folds if settings.folds else settings.fractions


def _sides(
    settings: SplitSettings,
    records: SplitRecords,
    side: NDArray[np.int64],
    group: NDArray[np.int64] | None,
    always_trains: NDArray[np.bool_] | None = None,
) -> SplitParts:
    """Parts, or folds if the settings have them, from the side of each record; -1 is unused."""
    if not settings.folds:
        return parts_of(records.digests, side, group)
    part = np.where(side < 0, UNUSED, TRAIN)
    fold = side if always_trains is None else np.where(always_trains, NO_FOLD, side)
    return parts_of(records.digests, part, group, fold)
