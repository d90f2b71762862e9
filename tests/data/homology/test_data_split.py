"""The split: whole clusters, the same on every start, in blocks and for single records."""

import hashlib
import json
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from data.homology import split as split_module
from data.homology.clusters import open_clusters
from data.homology.split import CorpusSplit, open_split, prefix_split, split_by_cluster
from data.store.token_store import TokenStore
from support.inputs.token_stores import store_of


def many(count: int = 400) -> list[tuple[str, str]]:
    return [(f"q{i}", "ACDEFGHIKL"[i % 10] * (i % 7 + 1) + "MKT" * (i // 10 + 1)) for i in range(count)]


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> TokenStore:
    return store_of(tmp_path_factory.mktemp("stores"), many())


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tables") / "clusters.tsv"
    path.write_text("".join(f"c{i % 40}\tq{i}\n" for i in range(400)))
    return path


def sides(split: CorpusSplit, num_records: int) -> tuple[list[int], list[int]]:
    return np.flatnonzero(split.is_training(np.arange(num_records))).tolist(), split.validation.tolist()


def test_clusters_are_held_out_whole(store: TokenStore, table: Path) -> None:
    split = open_split(store, open_clusters(store, table), 0.2, None)
    training, validation = sides(split, 400)
    out = {i % 40 for i in validation}
    assert 2 <= len(out) <= 16  # 8 expected of 40
    assert validation == [i for i in range(400) if i % 40 in out]
    assert sorted(training + validation) == list(range(400))
    assert split.num_training == len(training)
    assert split.validation.dtype == np.int64


def test_held_out_is_a_function_of_the_cluster_hash(store: TokenStore, table: Path) -> None:
    clusters = open_clusters(store, table)
    split = open_split(store, clusters, 0.2, None)
    of_records = split_by_cluster(clusters.of_records, split.validation_fraction)
    assert np.flatnonzero(of_records).tolist() == split.validation.tolist()
    members = clusters.members
    of_clusters = split_by_cluster(members.clusters, split.validation_fraction)
    for cluster, (start, stop) in enumerate(pairwise(members.offsets.tolist())):
        assert set(of_records[members.records[start:stop]].tolist()) == {bool(of_clusters[cluster])}
    # The rule that existing runs were split by.
    assert split_by_cluster(np.arange(12, dtype=np.uint64), 0.3).tolist() == [
        bool(value) for value in (0, 0, 1, 0, 1, 0, 1, 0, 1, 0, 0, 0)
    ]


def test_is_training_takes_records_in_any_order(store: TokenStore, table: Path) -> None:
    excluded = np.array([3, 5, 399], np.int64)
    split = open_split(store, open_clusters(store, table), 0.2, excluded)
    records = np.random.default_rng(0).integers(0, 400, 1000)
    validation = set(split.validation.tolist())
    expected = [r not in validation and r not in {3, 5, 399} for r in records.tolist()]
    assert split.is_training(records).tolist() == expected
    assert split.is_training(np.zeros(0, np.int64)).tolist() == []


def test_a_larger_fraction_holds_out_more_of_the_same(store: TokenStore) -> None:
    clusters = open_clusters(store, None)
    small, large = (set(open_split(store, clusters, f, None).validation.tolist()) for f in (0.1, 0.4))
    assert small < large
    assert 17 <= len(small) <= 63  # 40 expected; 4 standard deviations of 6
    assert 120 <= len(large) <= 200


def test_equal_sequences_stay_together_without_clusters(tmp_path: Path) -> None:
    proteins = [*many(), *((f"copy{name}", letters) for name, letters in many())]
    store = store_of(tmp_path, proteins)
    split = open_split(store, open_clusters(store, None), 0.3, None)
    out = set(split.validation.tolist())
    assert all((i in out) == (i + 400 in out) for i in range(400))
    assert 176 <= len(out) <= 304  # 240 expected; 3.5 standard deviations of 18


def test_excluded_records_are_on_no_side_unless_held_out(store: TokenStore, table: Path) -> None:
    clusters = open_clusters(store, table)
    plain = open_split(store, clusters, 0.2, None)
    held, trains = plain.validation[:2].tolist(), np.flatnonzero(plain.is_training(np.arange(400)))[:3].tolist()
    excluded = np.array(sorted(held + trains), np.int64)
    split = open_split(store, clusters, 0.2, excluded)
    assert split.validation.tolist() == plain.validation.tolist()
    assert split.excluded.tolist() == trains
    training, _ = sides(split, 400)
    assert training == sorted(set(sides(plain, 400)[0]) - set(trains))
    assert split.num_training == len(training) == plain.num_training - 3
    assert split.fingerprint != plain.fingerprint
    assert open_split(store, clusters, 0.2, np.zeros(0, np.int64)).fingerprint == plain.fingerprint


def test_blocks_make_no_difference(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    excluded = np.arange(0, 400, 9)
    found = []
    for name, block in (("a", 1 << 20), ("b", 7)):
        monkeypatch.setattr("data.homology.clusters._BLOCK", block)
        store = store_of(tmp_path / name, many())
        split = open_split(store, open_clusters(store, None), 0.3, excluded)
        found.append((split.fingerprint, split.validation.tolist(), split.excluded.tolist(), split.num_training))
    assert found[0] == found[1]


def test_is_written_hashed_and_found_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = store_of(tmp_path, many())
    clusters = open_clusters(store, None)
    split = open_split(store, clusters, 0.3, np.array([1, 2, 3]))
    (folder,) = store.folder.glob("split-*")
    facts = json.loads((folder / "split.json").read_text())
    content = (folder / "validation.bin").read_bytes()
    assert np.frombuffer(content, np.int64).tolist() == split.validation.tolist()
    assert facts["validation_hash"] == hashlib.blake2b(content, digest_size=16).hexdigest()
    assert facts["fingerprint"] == split.fingerprint
    assert (facts["corpus"], facts["clusters"]) == (store.fingerprint, clusters.fingerprint)
    assert facts["validation_fraction"] == 0.3
    assert facts["records"] == 400 == facts["training"] + facts["validation"] + facts["excluded"]
    assert isinstance(split.validation, np.memmap)
    monkeypatch.setattr(split_module, "_write", None)  # a second scan fails
    again = open_split(store, clusters, 0.3, np.array([1, 2, 3]))
    assert again.fingerprint == split.fingerprint
    (folder / "validation.bin").write_bytes(content[:-8])
    with pytest.raises(ValueError, match=r"validation\.bin has \d+ bytes, it must have \d+: it was cut short"):
        open_split(store, clusters, 0.3, np.array([1, 2, 3]))


def test_a_split_with_an_empty_side(tmp_path: Path) -> None:
    proteins = [("p1", "MKTAYIAKQRQ"), ("p2", "GG"), ("p3", "MKTAYIAKQRQ"), ("p4", "WWWWW")]
    store = store_of(tmp_path, proteins)
    clusters = open_clusters(store, None)
    with pytest.raises(ValueError, match=r"0\.001 of 3 clusters \(4 records\) leaves 0 records for validation and 4 "):
        open_split(store, clusters, 0.001, None)
    with pytest.raises(ValueError, match=r"leaves 4 records for validation and 0 for training; change"):
        open_split(store, clusters, 0.9999, None)
    held = int(np.flatnonzero(~split_by_cluster(store.digests, 0.5))[0])
    others = np.flatnonzero(~split_by_cluster(store.digests, 0.5))
    assert held in others
    with pytest.raises(ValueError, match=rf"0 for training and {len(others)} excluded by data\.exclude"):
        open_split(store, clusters, 0.5, np.arange(4))
    assert not list(store.folder.glob("*split-*"))


def test_a_fraction_of_0_holds_out_nothing(store: TokenStore) -> None:
    split = open_split(store, open_clusters(store, None), 0.0, None)
    assert len(split.validation) == 0
    assert split.num_training == store.num_records
    assert split.is_training(np.arange(store.num_records)).all()


def test_the_prefix_of_a_growing_store(tmp_path: Path) -> None:
    proteins = many()
    whole = store_of(tmp_path / "whole", proteins)
    begun = store_of(tmp_path / "begun", proteins[:150])
    split, early = prefix_split(whole, 100, 0.3), prefix_split(begun, 100, 0.3)
    assert split.fingerprint == early.fingerprint
    assert split.validation.tolist() == early.validation.tolist()
    assert split.validation.tolist() == np.flatnonzero(split_by_cluster(whole.digests[:100], 0.3)).tolist()
    # Held out after the prefix: on neither side.
    training, validation = sides(split, 400)
    out = np.flatnonzero(split_by_cluster(whole.digests, 0.3)).tolist()
    assert max(out) > 100
    assert training == sorted(set(range(400)) - set(out))
    assert split.num_training == 100 - len(validation) == len([r for r in training if r < 100])
    assert prefix_split(whole, 101, 0.3).fingerprint != split.fingerprint
    other = store_of(tmp_path / "other", [*proteins[:50], ("x", "WWWWWWWWW"), *proteins[51:]])
    assert prefix_split(other, 100, 0.3).fingerprint != split.fingerprint
    assert not [path for path in whole.folder.iterdir() if path.is_dir()]
    with pytest.raises(ValueError, match=r"0\.0001 of \d+ clusters \(100 records\) leaves 0 records"):
        prefix_split(whole, 100, 0.0001)
