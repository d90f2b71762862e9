"""Labels in bins: every observed label of a bin's records is one target, at its own slot; nothing else is."""

import pickle
from types import SimpleNamespace

import numpy as np
import pytest
from numpy.typing import NDArray

from data.batches.batch import Batch
from data.corpus.reader import CorpusReader
from data.order.plan import Bin
from finetune.labels.columns import LabelColumns
from finetune.labels.contents import LabelledContents
from finetune.labels.labels import Labels
from finetune.labels.store import LabelStore, write
from support.inputs.token_stores import proteins, store_of

PROTEINS = proteins(9)
LENGTHS = np.array([len(letters) for _, letters in PROTEINS])
SETTINGS = SimpleNamespace(bin_tokens=256, documents_per_bin=8)
LINKERS = np.zeros((9, 2), np.int64)
LINKERS[4] = 6, 9
Target = tuple[float, ...]


def drawn(rng: np.random.Generator, width: int) -> Labels:
    """Labels of two outputs; of whole sequences, residues or pairs, for width 0, 1 and 2."""
    found = []
    for record, length in enumerate(LENGTHS.tolist()):
        places = {tuple(sorted(rng.choice(length, width, replace=False).tolist())) for _ in range(9 if width else 1)}
        found += [(record, *place, output) for place in sorted(places) for output in (0, 1) if rng.random() < 0.6]
    table = np.array(found)
    count = len(table)
    positions = None if width == 0 else table[:, 1] if width == 1 else table[:, 1:3]
    return Labels(
        np.searchsorted(table[:, 0], np.arange(10)),
        table[:, -1].astype(np.int32),
        rng.normal(size=count).astype(np.float32),
        rng.integers(-1, 2, count).astype(np.int8),
        None if positions is None else positions.astype(np.int32),
    )


def along() -> Labels:
    """A class for two of three residues, of one output."""
    positions = [np.flatnonzero(np.arange(length) % 3) for length in LENGTHS]
    counts = [len(each) for each in positions]
    flat = np.concatenate(positions).astype(np.int32)
    zeros = np.zeros(len(flat), np.int32)
    return Labels(np.cumsum([0, *counts]), zeros, (flat % 5).astype(np.float32), None, flat)


RNG = np.random.default_rng(5)
OBJECTIVES = {"sequence": drawn(RNG, 0), "residue": drawn(RNG, 1), "pair": drawn(RNG, 2), "along": along()}


@pytest.fixture(scope="module")
def contents(tmp_path_factory: pytest.TempPathFactory) -> LabelledContents:
    tokens = store_of(tmp_path_factory.mktemp("tokens"), PROTEINS)
    store = write(tokens, OBJECTIVES, LINKERS)
    made = LabelledContents(CorpusReader([tokens.folder]), SETTINGS, store)  # type: ignore[arg-type]
    return pickle.loads(pickle.dumps(made))


def bin_of(records: list[int], starts: list[int] | None = None, lengths: list[int] | None = None) -> Bin:
    """Whole proteins, or slices of them."""
    numbers = np.array(records)
    whole = LENGTHS[numbers] + 2
    zeros = np.zeros(len(numbers), np.int64)
    return Bin(
        numbers,
        zeros,
        zeros if starts is None else np.array(starts),
        whole if lengths is None else np.array(lengths),
    )


def expected(
    labels: Labels, records: list[int], starts: NDArray[np.int64], lengths: NDArray[np.int64], first: int
) -> list[Target]:
    """By loops: slot, label, output, censoring, place, linker's start and end, partner of each target."""
    found = []
    residues = np.cumsum([0, *LENGTHS])
    for record, start, length in zip(records, starts.tolist(), lengths.tolist(), strict=True):
        linker = [min(max(end + 1 - start, 0), length) for end in LINKERS[record].tolist()]
        linker = linker if LINKERS[record, 1] and linker[1] > linker[0] else [0, 0]
        for i in range(labels.pointers[record], labels.pointers[record + 1]):
            place, slots = record, [0, 0]
            if labels.positions is not None:
                at = np.atleast_1d(labels.positions[i]).tolist()
                place, slots = int(residues[record]) + at[0], [at[0] + 1 - start, at[-1] + 1 - start]
                if not all(0 <= slot < length for slot in slots):
                    continue
            censoring = 0 if labels.censoring is None else int(labels.censoring[i])
            found.append(
                (
                    first + slots[0],
                    float(labels.values[i]),
                    int(labels.outputs[i]),
                    censoring,
                    place,
                    *linker,
                    slots[1] - slots[0],
                )
            )
        first += length
    return found


def found_in(batch: Batch, objective: int) -> list[Target]:
    targets = batch.targets[objective]
    columns = LabelColumns(*targets.columns)
    return list(zip(*(column.tolist() for column in (targets.slots, targets.labels, *columns)), strict=True))


CUT = ([4, 2, 4, 8], [5, 3, 0, 11], [12, 9, 6, 7])


@pytest.mark.parametrize("records", [[2, 7, 0], [8, 4], [4]])
def test_every_observed_label_is_a_target(contents: LabelledContents, records: list[int]) -> None:
    bin_, other = bin_of(records), bin_of([3, 5])
    batch = contents.batch([other, bin_], [0, 0])
    for number, labels in enumerate(OBJECTIVES.values()):
        of_other = expected(labels, [3, 5], other.starts, other.lengths, 0)
        wanted = of_other + expected(labels, records, bin_.starts, bin_.lengths, 256)
        assert found_in(batch, number) == wanted
        assert len(wanted) > 1
    assert batch.counts.tolist() == [len(found_in(batch, number)) for number in range(4)]


def test_slots_show_the_residues_that_are_labelled(contents: LabelledContents) -> None:
    records = [7, 1]
    batch = contents.batch([bin_of(records)], [0])
    for number in (1, 2, 3):
        targets = batch.targets[number]
        columns = LabelColumns(*targets.columns)
        every = np.concatenate([contents.residues.residues(s) for s in range(9)])  # type: ignore[attr-defined]
        assert batch.tokens[targets.slots].tolist() == every[columns.place].tolist()
        assert (batch.documents[targets.slots] == batch.documents[targets.slots + columns.partner]).all()


def test_a_slice_has_the_labels_that_lie_in_it(contents: LabelledContents) -> None:
    bin_ = bin_of(*CUT)
    batch = contents.batch([bin_], [0])
    for number, labels in enumerate(OBJECTIVES.values()):
        wanted = expected(labels, CUT[0], bin_.starts, bin_.lengths, 0)
        assert found_in(batch, number) == wanted
    assert 0 < len(found_in(batch, 3)) < sum(along().pointers[r + 1] - along().pointers[r] for r in CUT[0])
    skips = {(target[5], target[6]) for target in found_in(batch, 0)}
    assert {(2, 5), (0, 0)} <= skips | {(0, 0)}


def test_a_bin_without_labels_has_no_targets(tmp_path_factory: pytest.TempPathFactory) -> None:
    store = store_of(tmp_path_factory.mktemp("tokens"), PROTEINS)
    empty = Labels(np.zeros(10, np.int64), np.zeros(0, np.int32), np.zeros(0, np.float32))
    made = LabelledContents(CorpusReader([store.folder]), SETTINGS, write(store, {"y": empty}))  # type: ignore[arg-type]
    batch = made.batch([bin_of([0, 1])], [0])
    assert batch.counts.tolist() == [0]
    assert [len(column) for column in batch.targets[0].columns] == [0] * 6


@pytest.mark.parametrize("width", [1, 2])
def test_a_bin_without_labels_of_residues_or_pairs_has_no_targets(
    tmp_path_factory: pytest.TempPathFactory, width: int
) -> None:
    """Though other records have some."""
    store = store_of(tmp_path_factory.mktemp("tokens"), PROTEINS)
    pointers, positions = np.array([0] * 4 + [1] * 6), np.array([[2, 5]], np.int32)[:, :width]
    one = np.zeros(1, np.int32), np.ones(1, np.float32), np.ones(1, np.int8)
    labels = Labels(pointers, *one, positions if width == 2 else positions[:, 0])
    written = write(store, {"y": labels})
    made = LabelledContents(CorpusReader([store.folder]), SETTINGS, written)  # type: ignore[arg-type]
    assert [made.batch([bin_of(records)], [0]).counts.tolist() for records in ([0, 1], [3])] == [[0], [1]]


def test_the_digest_covers_labels(contents: LabelledContents, tmp_path_factory: pytest.TempPathFactory) -> None:
    store = store_of(tmp_path_factory.mktemp("tokens"), PROTEINS)
    labels = OBJECTIVES["sequence"]
    digests = set()
    for change in (0, 1):
        values = labels.values.copy()
        values[0] += change
        changed = Labels(labels.pointers, labels.outputs, values, labels.censoring)
        made = LabelledContents(CorpusReader([store.folder]), SETTINGS, write(store, {"y": changed}))  # type: ignore[arg-type]
        digests.add(made.fill(bin_of([0, 1])).digest)
    assert len(digests) == 2
    assert isinstance(contents.store, LabelStore)
