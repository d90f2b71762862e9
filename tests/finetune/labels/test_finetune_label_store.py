"""The label store: what was observed comes back, what is missing has no byte, and damage is found."""

import pickle
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from data.store.token_store import TokenStore
from finetune.labels.labels import Labels
from finetune.labels.locate import TableRows
from finetune.labels.read import read_task
from finetune.labels.store import LabelStore, write
from finetune.tables.table import Table
from support.assays.labelled_rows import as_list, rows_of, task
from support.inputs.token_stores import changed, proteins, store_of

PROTEINS = proteins(12)
LENGTHS = [len(letters) for _, letters in PROTEINS]
COLUMNS = {"a": ["0", None, "<2.5", "1", "", *["NA"] * 6, "7"], "b": [None, "-1", "4", *[None] * 9]}


@pytest.fixture(scope="module")
def tokens(tmp_path_factory: pytest.TempPathFactory) -> TokenStore:
    return store_of(tmp_path_factory.mktemp("tokens"), PROTEINS)


def read_ab() -> Labels:
    rows = rows_of(COLUMNS, [*range(11), 3])
    return read_task(TableRows(rows.table, rows.records, 12), task(columns=("a", "b"))).labels


def dense(share: float = 0.6, seed: int = 1) -> Labels:
    """A class for most residues."""
    rng = np.random.default_rng(seed)
    cells = ["".join(rng.choice(list("HEC-"), length, p=[*[share / 3] * 3, 1 - share])) for length in LENGTHS]
    rows = rows_of({"y": cells}, lengths=LENGTHS)
    return read_task(rows, task(type="multiclass", level="residue", classes=("H", "E", "C"))).labels


def same(found: Labels, expected: Labels) -> None:
    for name in Labels.__slots__:
        ours, theirs = getattr(found, name), getattr(expected, name)
        assert (ours is None) == (theirs is None), name
        if ours is not None:
            assert ours.dtype == theirs.dtype, name
            np.testing.assert_array_equal(ours, theirs, name)


def files_of(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


def test_labels_come_back_as_they_were(tokens: TokenStore) -> None:
    written = write(tokens, {"ab": read_ab(), "ss": dense()})
    store = pickle.loads(pickle.dumps(written))
    assert len(pickle.dumps(written)) < 1000
    assert (store.names, store.labels(0).num_records, store.fingerprint) == (("ab", "ss"), 12, written.fingerprint)
    same(store.labels(0), read_ab())
    same(store.labels(1), dense())
    assert as_list(store.labels(0))[0] == (0, 0, 0.0, 0)  # an observed zero
    some = store.of_records(0, np.array([3, 1, 3, 4]))
    assert [array.tolist() for array in (some.of, some.outputs, some.values)] == [
        [0, 1, 2],
        [0, 1, 0],
        [4.0, -1.0, 4.0],
    ]


def test_numbers_of_residues_and_pairs_come_back(tokens: TokenStore) -> None:
    rng = np.random.default_rng(0)
    cells = [" ".join(f"{v:.3f}" if v > -1 else "-" for v in rng.normal(size=length)) for length in LENGTHS]
    along = read_task(rows_of({"y": cells}, lengths=LENGTHS), task(level="residue")).labels
    pairs = read_task(rows_of({"y": ["1-5:2 3-4:>1", *[None] * 11]}, lengths=LENGTHS), task(level="pair")).labels
    store = write(tokens, {"along": along, "pairs": pairs})
    same(store.labels(0), along)
    same(store.labels(1), pairs)


# What is missing ----------------------------------------------------------------------------------


@pytest.mark.parametrize("garbage", ["NaN", "1e9", "-", "what"])
def test_a_missing_cell_may_hold_anything(tokens: TokenStore, garbage: str) -> None:
    """As text that means 'missing', and below the null of an Arrow array."""
    expected = write(tokens, {"ab": read_ab()})
    filled = {
        name: [garbage if cell in (None, "", "NA") else cell for cell in cells] for name, cells in COLUMNS.items()
    }
    rows = rows_of(filled, [*range(11), 3])
    named = read_task(TableRows(rows.table, rows.records, 12), task(columns=("a", "b"), missing=(garbage,))).labels
    nulls = {
        name: pa.array(cells).filter(pa.array([True] * 12)) for name, cells in filled.items()
    }  # own buffers, which get a mask
    hidden = {
        name: pa.StringArray.from_buffers(
            12,
            array.buffers()[1],
            array.buffers()[2],
            pa.array([cell not in (None, "", "NA") for cell in COLUMNS[name]]).buffers()[1],
        )
        for name, array in nulls.items()
    }
    masked = TableRows(Table("t.csv", pa.table(hidden), 2), rows.records, 12)
    below = read_task(masked, task(columns=("a", "b"))).labels
    for labels in (named, below):
        found = write(tokens, {"ab": labels})
        assert found.folder == expected.folder
        assert found.fingerprint == expected.fingerprint
        same(labels, read_ab())


def test_files_are_the_same_whatever_was_missing(tmp_path: Path) -> None:
    of_each = []
    for name, cells in (("a", ["H-C", "E"]), ("b", ["HXC", "E"])):
        store = store_of(tmp_path / name, [("p", "MKV"), ("q", "M")])
        settings = task(type="multiclass", level="residue", classes=("C", "E", "H"), missing=("-", "X"))
        labels = read_task(rows_of({"y": cells}, lengths=[3, 1]), settings).labels
        of_each.append(files_of(write(store, {"y": labels}).folder))
    assert of_each[0] == of_each[1]
    assert of_each[0]["0-positions.bin"] == bytes([0, 2, 0])


# Whole or not at all ------------------------------------------------------------------------------


def test_it_is_written_once_and_found_again(tokens: TokenStore) -> None:
    first = write(tokens, {"x": dense()})
    before = (first.folder / "labels.json").stat().st_mtime_ns
    assert write(tokens, {"x": dense()}).folder == first.folder
    assert (first.folder / "labels.json").stat().st_mtime_ns == before
    fingerprints = {first.fingerprint, *(write(tokens, {name: labels}).fingerprint for name, labels in (
        ("y", dense()), ("x", dense(seed=2)), ("x", read_ab())))}  # fmt: skip
    assert len(fingerprints) == 4


@pytest.mark.parametrize("harm", ["cut", "changed", "gone", "facts"])
def test_damage_is_found_when_it_is_opened(tmp_path: Path, harm: str) -> None:
    tokens = store_of(tmp_path, PROTEINS)
    folder = write(tokens, {"ab": read_ab()}).folder
    path = folder / ("labels.json" if harm == "facts" else "0-values.bin")
    content = path.read_bytes()
    if harm == "gone":
        path.unlink()
    else:
        changed_content = (
            content.replace(b'"records": 12', b'"records": 11') if harm == "facts" else content[:-1] + b"x"
        )
        path.write_bytes(content[:-4] if harm == "cut" else changed_content)
    said = {"cut": "must have 20", "changed": "differs from what was written", "gone": "is missing", "facts": "differs"}
    with pytest.raises(ValueError, match=f"{path.name}.*{said[harm]}.*delete {folder}, it is written again"):
        LabelStore(folder, tokens.folder)


def test_labels_of_other_sequences_are_refused(tmp_path: Path) -> None:
    tokens, other = store_of(tmp_path / "a", PROTEINS), store_of(tmp_path / "b", changed(PROTEINS, 7))
    folder = write(tokens, {"ab": read_ab()}).folder
    with pytest.raises(ValueError, match="holds labels of other sequences"):
        LabelStore(folder, other.folder)
