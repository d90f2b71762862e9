"""Variants of one protein: what is mutated in each, how far apart they are, and splits by position and by distance.

In: sequences of one length, or mutations as a table has them. Out: mutated positions, distances, the side of each
record. Kept: nothing. Insertions and deletions are not compared.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from data.alphabet import TOKENS
from data.store.token_store import TokenStore
from finetune.splits.balance import balance_groups
from finetune.splits.parts import TEST, TRAIN, UNUSED, SplitRecords

MIXED = -1
"""The side of a record that has mutations on two sides."""
_TYPICAL_SHARE = 0.2
_OTHER_LENGTHS = 0.05
"""Share of the variants of one protein that may have another length than it, and are then in no part."""


@dataclass(frozen=True, slots=True)
class MutatedPositions:
    """The mutated positions of N records, as M pairs of a record and a position."""

    count: int
    """Number of records, N."""
    record: NDArray[np.int64]
    """(M,) record of each pair, rising."""
    position: NDArray[np.int64]
    """(M,) its position from 0; of several proteins, a number that no position of another protein has."""
    other_length: tuple[int, ...] = ()
    """Records that are not compared, as they have another length; they have no mutated position here."""

    @property
    def distances(self) -> NDArray[np.int64]:
        """(N,) number of mutations of each record."""
        return np.bincount(self.record, minlength=self.count)

    @property
    def is_parent(self) -> NDArray[np.bool_]:
        """(N,) whether a record is compared and has no mutation."""
        found = np.asarray(self.distances == 0)
        found[[*self.other_length]] = False
        return found

    @property
    def lowest(self) -> NDArray[np.int64]:
        """(N,) the lowest of each record's positions; -1 of a record without any."""
        found = np.full(self.count, self.position.max(initial=-1) + 1)
        np.minimum.at(found, self.record, self.position)
        return np.where(self.distances > 0, found, -1)


def of_sequences(records: SplitRecords, parent: NDArray[np.uint8] | None, asked_by: str) -> MutatedPositions:
    """Where each record differs from the parent that all of them are variants of.

    Up to `_OTHER_LENGTHS` of the records may have another length, as after a deletion; they are not compared.

    Args:
        records: records with a token store.
        parent: (L,) token ids of the wild type; None to take the most frequent residue at each position.
        asked_by: the setting that needs it, for errors.

    Raises:
        ValueError: more sequences have another length than the parent, or than most; the message names rows.
    """
    if records.store is None:
        raise ValueError(f"{asked_by} compares protein sequences, and {records.table.name} has none")
    lengths = records.store.num_residues(np.arange(records.count))
    length = int(np.bincount(lengths).argmax()) if parent is None else len(parent)
    others = np.flatnonzero(lengths != length)
    if len(others) > _OTHER_LENGTHS * records.count:
        rows = np.flatnonzero(np.isin(records.of_row, others))
        wanted = f"the {length} residues of {'the others' if parent is None else 'the wild type'}"
        raise ValueError(
            f"{records.rows(rows)}: {asked_by} compares sequences position by position, and {len(others):,} of "
            f"{records.count:,} do not have {wanted} (the first has {lengths[others[0]]}); leave them out, or "
            "choose another split.by"
        )
    compared, residues = _of_length(records.store, length)
    record, position = np.nonzero(residues != (consensus(residues) if parent is None else parent))
    return MutatedPositions(records.count, compared[record], position, tuple(others.tolist()))


def of_rows(
    records: SplitRecords, mutated: Sequence[Sequence[int]] | None, wild_types: Sequence[str] | None
) -> MutatedPositions | None:
    """Mutations as a table writes them, of one protein or of several; None where it has none.

    Args:
        records: the records.
        mutated: (rows,) positions, from 0, in which a row differs from its wild type.
        wild_types: (rows,) name of the protein that the row changes.
    """
    if mutated is None or wild_types is None:
        return None
    of_records, first = np.unique(records.of_row, return_index=True)
    of_rows = first[of_records >= 0].tolist()
    # Sorted, as what is drawn must not depend on the order of rows.
    places = sorted({(wild_types[row], place) for row in of_rows for place in mutated[row]})
    numbers = {place: number for number, place in enumerate(places)}
    pairs = [(each, numbers[wild_types[row], place]) for each, row in enumerate(of_rows) for place in mutated[row]]
    return MutatedPositions(records.count, *np.array(pairs, np.int64).reshape(-1, 2).T)


def consensus(residues: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """(L,) the most frequent token at each position of (N, L); of equally frequent ones the lowest."""
    counts = np.stack([np.count_nonzero(residues == token, axis=0) for token in range(len(TOKENS))])
    return np.asarray(counts.argmax(axis=0), np.uint8)


def _of_length(store: TokenStore, length: int) -> tuple[NDArray[np.int64], NDArray[np.uint8]]:
    """(n,) the records of some length, rising, and their (n, length) token ids."""
    tokens, lengths = np.asarray(store.tokens), store.num_residues(np.arange(store.num_records))
    is_one = lengths == length
    residues = tokens if is_one.all() else tokens[np.repeat(is_one, lengths)]
    return np.flatnonzero(is_one), residues.reshape(-1, length)


def are_mostly_variants(store: TokenStore) -> bool:
    """Whether sequences are variants of one protein by `are_variants`, apart from a few of another length."""
    lengths = np.diff(np.asarray(store.offsets).astype(np.int64))
    usual = int(np.bincount(lengths).argmax()) if len(lengths) else 0
    records, residues = _of_length(store, usual)
    if len(records) < 2 or len(records) < (1 - _OTHER_LENGTHS) * store.num_records:
        return False
    mutated = np.count_nonzero(residues != consensus(residues), axis=1)
    return bool(np.median(mutated) <= _TYPICAL_SHARE * usual)


def are_variants(store: TokenStore) -> bool:
    """Whether all sequences have one length and a typical one differs from the consensus in at most a fifth of it."""
    lengths = np.diff(np.asarray(store.offsets).astype(np.int64))
    return store.num_records > 1 and bool(lengths.min() == lengths.max()) and are_mostly_variants(store)


def to_nearest(residues: NDArray[np.uint8], targets: NDArray[np.uint8]) -> NDArray[np.int64]:
    """(n,) number of positions in which each of (n, L) sequences differs from the nearest of (m, L); L without any."""
    from sklearn.metrics import pairwise_distances_argmin_min

    if not len(residues) or not len(targets):
        return np.full(len(residues), residues.shape[1], np.int64)
    varies = (np.concatenate([residues, targets]) != residues[:1]).any(axis=0)
    varies[:1] = True  # one column at least
    nearest = pairwise_distances_argmin_min(residues[:, varies], targets[:, varies], metric="hamming")[1]
    return np.asarray(np.rint(nearest * np.count_nonzero(varies)), np.int64)


def by_position(
    mutations: MutatedPositions, digests: NDArray[np.uint64], shares: tuple[float, ...], seed: int
) -> tuple[NDArray[np.int64], list[str]]:
    """The side of each record: positions are dealt to sides, and a record is on the side of all of its positions.

    Args:
        mutations: of the records.
        digests: (N,) their digests.
        shares: shares of the sides; a position counts as many records as are mutated there.
        seed: seed of the draw.

    Returns:
        (N,) index of the side; `MIXED` for a record with mutations on two sides, so that no position of a held-out
        record trains; the parent itself is on side 0. And notes.
    """
    record = mutations.record
    used, of_pair = np.unique(mutations.position, return_inverse=True)
    sides = balance_groups(of_pair, np.asarray(used, np.uint64)[of_pair], shares, seed)
    of_pairs = sides[of_pair]
    lowest, highest = np.full(len(digests), len(shares)), np.full(len(digests), -1)
    np.minimum.at(lowest, record, of_pairs)
    np.maximum.at(highest, record, of_pairs)
    side = np.where(highest < 0, 0, np.where(lowest == highest, lowest, MIXED))
    side[[*mutations.other_length]] = MIXED
    counts = np.bincount(sides, minlength=len(shares))
    notes = [f"of {len(used):,} mutated positions, {', '.join(map(str, counts))} are on the sides in their order"]
    if others := len(mutations.other_length):
        notes.append(f"{others:,} of {len(side):,} sequences have another length and are unused")
    if mixed := int(np.count_nonzero(side == MIXED)) - others:
        notes.append(f"{mixed:,} of {len(side):,} sequences have mutations on two sides and are unused")
    return side, notes


def by_distance(
    mutations: MutatedPositions, digests: NDArray[np.uint64], most: int, fractions: tuple[float, ...], seed: int
) -> tuple[NDArray[np.int8], list[str]]:
    """The part of each record: up to `most` mutations trains, more is tested.

    Validation is drawn from those that would train, in the proportion that `fractions` gives it beside training.
    """
    few = mutations.distances <= most
    few[[*mutations.other_length]] = False
    part = np.where(few, TRAIN, TEST).astype(np.int8)
    part[[*mutations.other_length]] = UNUSED
    if few.any() and fractions[1]:
        shares = fractions[0] / (fractions[0] + fractions[1]), fractions[1] / (fractions[0] + fractions[1])
        part[few] = balance_groups(np.arange(np.count_nonzero(few)), digests[few], shares, seed)
    listed = ", ".join(f"{n}: {count:,}" for n, count in enumerate(np.bincount(mutations.distances)) if count)
    return part, [f"sequences by number of mutations: {listed}"]
