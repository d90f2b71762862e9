"""The label store: what was observed comes back, what is missing has no byte, and damage is found."""

import json
import pickle
import subprocess
import sys
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
from support.places import ROOT

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


# A thousand tasks ---------------------------------------------------------------------------------

MEASURED = """
import sys
import numpy as np
from pathlib import Path
from types import SimpleNamespace
from data.batches.collate import fill_bin
from data.corpus.reader import CorpusReader
from data.order.plan import Bin
from finetune.labels.contents import LabelledContents
from finetune.labels.store import LabelStore
tokens, labels, with_labels = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3] == "1"
reader = CorpusReader([tokens])
contents = LabelledContents(reader, SimpleNamespace(), LabelStore(labels, tokens)) if with_labels else None
count = 0
for records in np.array_split(np.random.default_rng(0).permutation(200_000), 4_000):
    lengths = reader.num_residues(records) + 2
    bin_ = Bin(records, np.zeros(50, np.int64), np.zeros(50, np.int64), lengths)
    if contents:
        count += len(contents.fill(bin_).targets[0][0])
    else:
        fill_bin(bin_, reader.tokens(bin_))
status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
print(count, int(status["VmHWM"].split()[0]) / 1024)  # ru_maxrss would be that of the parent
"""


@pytest.mark.prove
def test_a_thousand_tasks_over_200_000_rows(tmp_path: Path) -> None:
    """0.6 % observed, each of up to four measurements: at most 20 MB on disk, and 150 MB while bins are filled."""
    rng = np.random.default_rng(0)
    letters = rng.choice(list("ACDEFGHIKLMNPQRSTVWY"), (200_000, 60))
    tokens = store_of(tmp_path, ((f"p{i}", "".join(row)) for i, row in enumerate(letters)))
    places = np.sort(rng.choice(200_000 * 1000, 1_200_000, replace=False))
    pointers = np.searchsorted(places, np.arange(200_001) * 1000)
    labels = Labels(
        pointers,
        (places % 1000).astype(np.int32),
        rng.normal(size=len(places)).astype(np.float32),
        rng.integers(-1, 2, len(places)).astype(np.int8),
        None,
        rng.integers(1, 5, len(places)).astype(np.int32),
        rng.normal(size=len(places)).astype(np.float32) ** 2,
    )
    store = write(tokens, {"y": labels})
    same(store.labels(0), labels)
    num_bytes = sum(map(len, files_of(store.folder).values()))
    assert num_bytes <= 20e6
    peaks = []
    for with_labels in "01":
        command = [sys.executable, "-c", MEASURED, str(tokens.folder), str(store.folder), with_labels]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True, timeout=280)
        count, peak = done.stdout.split()
        assert int(count) == (1_200_000 if with_labels == "1" else 0)
        peaks.append(float(peak))
    print(json.dumps({"store_MB": num_bytes / 1e6, "tokens_peak_MiB": peaks[0], "labels_peak_MiB": peaks[1]}))
    assert peaks[1] - peaks[0] <= 150
