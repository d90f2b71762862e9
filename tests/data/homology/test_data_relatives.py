"""Relatives of one set in another: by query coverage with MMseqs2, and by shared words without it."""

import shutil
from pathlib import Path

import numpy as np
import psutil
import pytest

from data.alphabet import STANDARD_RESIDUES
from data.homology import kmers, mmseqs, relatives
from data.homology.mmseqs import cluster_by_identity
from data.homology.relatives import cluster_within, equal, hits, nearest, related
from support.inputs.token_stores import store_of
from zymogen.keyed_random import hashes, integers

needs_mmseqs = pytest.mark.skipif(shutil.which("mmseqs") is None, reason="no program 'mmseqs' (apt install mmseqs2)")


def drawn(length: int, seed: int) -> str:
    return "".join(STANDARD_RESIDUES[number] for number in integers(hashes(seed, np.arange(length)), 20))


def every(protein: str, step: int) -> str:
    """The protein with another residue at every `step`-th position."""
    other = dict(zip(STANDARD_RESIDUES, STANDARD_RESIDUES[1:] + STANDARD_RESIDUES[0], strict=True))
    return "".join(other[letter] if at % step == 0 else letter for at, letter in enumerate(protein))


def without_mmseqs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: None)


def test_equal_sequences_are_found_in_blocks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    proteins = [drawn(20, seed) for seed in range(9)]
    store = store_of(tmp_path / "a", [("x", proteins[7]), ("y", drawn(20, 99)), ("z", proteins[2])])
    against = store_of(tmp_path / "b", [(str(i), letters) for i, letters in enumerate([*proteins, proteins[2]])])
    records = np.array([2, 1, 0])
    for block in (1 << 20, 2):
        monkeypatch.setattr(relatives, "_BLOCK", block)
        assert equal(store, records, against).tolist() == [2, -1, 7]  # the first of two
        assert equal(store, records, against, np.array([0, 9, 8, 7])).tolist() == [9, -1, 7]
    assert equal(store, np.zeros(0, np.int64), against).tolist() == []


def test_words_find_close_relatives_and_no_strangers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    without_mmseqs(monkeypatch)
    proteins = [drawn(300, seed) for seed in range(40)]
    against = store_of(tmp_path / "b", [(str(i), letters) for i, letters in enumerate(proteins)])
    asked = [proteins[3], every(proteins[5], 10), drawn(300, 1000), proteins[8][:150] + drawn(150, 1001)]
    store = store_of(tmp_path / "a", [(str(i), letters) for i, letters in enumerate(asked)])
    found = nearest(store, np.arange(4), against)
    assert found.record.tolist() == [3, 5, -1, 8]
    assert found.identity[0] == 1.0
    # One position in ten differs, so half of all words of five are equal: 150 of 296, and 0.507**0.2 = 0.873.
    assert found.identity[1] == pytest.approx(0.873, abs=0.002)
    assert found.identity[2] == 0.0
    # 146 of 296 words: without an alignment half a protein looks like a relative that differs everywhere.
    assert found.identity[3] == pytest.approx((146 / 296) ** 0.2)
    among = nearest(store, np.arange(4), against, np.array([1, 8, 3]))
    assert among.record.tolist() == [3, -1, -1, 8]
    assert relatives.search_method() == f"{kmers.NAME}; position below 30 residues"


def test_clusters_by_words_are_connected_and_do_not_depend_on_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    without_mmseqs(monkeypatch)
    monkeypatch.setattr(kmers, "_ROWS", 2)
    first = drawn(100, 31)
    # A chain: the ends share only what both share with the middle.
    chain = [first, first[50:] + drawn(50, 2), drawn(50, 2) + drawn(50, 3)]
    proteins = [*chain, *(drawn(100, seed) for seed in range(4, 12)), first, "MKT"]
    store = store_of(tmp_path / "a", [(str(i), letters) for i, letters in enumerate(proteins)])
    found = related(store, 0.5)
    assert found.is_approximate
    assert "approximate" in found.description
    hashes_of = found.hashes.tolist()
    digests = store.digests.tolist()
    lowest = min(digests[:3])
    assert hashes_of == [lowest, lowest, lowest, *digests[3:11], lowest, digests[12]]
    turned = store_of(tmp_path / "b", [(str(i), letters) for i, letters in enumerate(proteins[::-1])])
    assert related(turned, 0.5).hashes.tolist()[::-1] == hashes_of


@pytest.mark.slow
@needs_mmseqs
def test_the_query_must_be_covered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    domain, protein = drawn(100, 1), drawn(300, 2)
    against = store_of(tmp_path / "b", [("long", drawn(150, 3) + domain + drawn(150, 4)), ("short", protein[:100])])
    asked = [every(domain, 5), every(protein, 5), drawn(200, 9), protein[:100]]
    store = store_of(tmp_path / "a", [(str(i), letters) for i, letters in enumerate(asked)])
    found = nearest(store, np.arange(4), against)
    # A domain inside a longer protein is covered; of the long protein the target covers a third alone.
    assert found.record.tolist() == [0, -1, -1, 1]
    assert found.identity[0] == pytest.approx(0.8, abs=0.02)
    assert found.identity[[1, 2, 3]].tolist() == [0.0, 0.0, 1.0]
    assert nearest(store, np.array([1]), against, None, 0.3).record.tolist() == [1]
    found_by_mmseqs = related(store, 0.5)
    assert not found_by_mmseqs.is_approximate
    assert found_by_mmseqs.hashes.tolist() == cluster_by_identity(store, 0.5).of_records.tolist()
    # They are reused where MMseqs2 is not installed any more.
    without_mmseqs(monkeypatch)
    assert related(store, 0.5).hashes.tolist() == found_by_mmseqs.hashes.tolist()
    assert related(store, 0.6).is_approximate


@pytest.mark.launch
@needs_mmseqs
def test_a_search_is_kept_and_what_is_not_whole_is_searched_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    proteins = [drawn(120, 1), drawn(120, 2), every(drawn(120, 1), 5), drawn(120, 2), drawn(120, 3)]
    store = store_of(tmp_path, [(str(i), letters) for i, letters in enumerate(proteins)])
    asked, others = np.array([2, 3, 4]), np.array([1, 0])
    monkeypatch.setattr(relatives, "_TOGETHER", 0)  # as for a larger table
    runs: list[str] = []
    run = mmseqs.run
    monkeypatch.setattr(mmseqs, "run", lambda work, *given: (runs.append(given[0]), run(work, *given))[1])
    first = hits(store, asked, store, others)
    assert list(zip(first.query.tolist(), first.target.tolist(), strict=True)) == [(0, 1), (1, 0)]
    assert first.identity[1] == 1.0
    assert first.score[1] > first.score[0]
    # The audit's question is answered by the same search, whatever the coverage.
    assert nearest(store, asked, store, others).record.tolist() == [0, 1, -1]
    again = hits(store, asked, store, others)
    assert all((mine == kept).all() for mine, kept in zip(first[:-1], again[:-1], strict=True))
    assert runs == ["easy-search"]
    (kept,) = tmp_path.rglob("hits-*.npz")
    kept.write_bytes(kept.read_bytes()[:-100])
    assert hits(store, asked, store, others).target.tolist() == [1, 0]
    assert hits(store, asked, store, np.array([4, 0])).query.tolist() == [0, 2]  # other targets are another search
    assert runs == ["easy-search"] * 3
    assert first.is_searchable.all()
    # Two queries fill each other's list of hits, which may hide a target.
    monkeypatch.setattr(relatives, "SEARCH", (*relatives.SEARCH[:-1], "2"))
    assert hits(store, np.array([0, 2, 4]), store, np.array([1])).is_searchable.tolist() == [False, False, True]


@pytest.mark.launch
@needs_mmseqs
def test_a_small_table_is_searched_once_for_all_its_folds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    families = [[every(drawn(90, of), step) for step in (3, 4, 5, 7, 90)] for of in range(4)]
    proteins = [letters for family in families for letters in family] + [drawn(90, 9), drawn(12, 10)]
    store = store_of(tmp_path, [(str(i), letters) for i, letters in enumerate(proteins)])
    everything = np.arange(len(proteins))
    folds = [(everything[everything % 5 == fold], everything[everything % 5 != fold]) for fold in range(5)]
    runs: list[str] = []
    run = mmseqs.run
    monkeypatch.setattr(mmseqs, "run", lambda work, *given: (runs.append(given[0]), run(work, *given))[1])
    together = [hits(store, asked, store, others) for asked, others in folds]
    assert runs == ["easy-search"]
    monkeypatch.setattr(relatives, "_TOGETHER", 0)
    for path in tmp_path.rglob("hits-*.npz"):
        path.unlink()
    for (asked, others), found in zip(folds, together, strict=True):
        assert len(found.query) >= 12
        for mine, alone in zip(found, hits(store, asked, store, others), strict=True):
            assert mine.tolist() == alone.tolist()
    assert len(runs) == 6


@pytest.mark.prove
@needs_mmseqs
def test_one_search_among_relatives_gives_the_clusters_of_each_identity(tmp_path: Path) -> None:
    families = [drawn(150, seed) for seed in range(6)]
    # Identities of about 95, 80 and 67 %; the last protein of each family is one before it again.
    members = [(one, every(one, 20), every(one, 5), every(one, 3), every(one, 20)) for one in families]
    strangers = [drawn(150, 100 + seed) for seed in range(20)]
    letters = [*(each for family in members for each in family), *strangers]
    store = store_of(tmp_path / "a", [(str(i), each) for i, each in enumerate(letters)])
    within = np.arange(30)
    whole = np.unique(related(store, 0.3).hashes, return_counts=True)[1]
    assert sorted(whole.tolist()) == [1] * 20 + [5] * 6
    found = cluster_within(store, within, (0.5, 0.9))
    for identity, clusters in ((0.5, 6), (0.9, 18)):
        hashes_of = related(store, identity).hashes[within]
        expected = np.unique(hashes_of, return_inverse=True)[1]
        assert len(np.unique(found[identity])) == len(np.unique(expected)) == clusters
        pairs = np.unique(np.stack([found[identity], expected]), axis=1)
        assert pairs.shape[1] == clusters  # one component is one cluster
    assert [len(each) for each in cluster_within(store, within[:0], (0.5, 0.9)).values()] == [0, 0]


@pytest.mark.slow
@needs_mmseqs
def test_a_search_fits_into_a_machine_whose_memory_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """MMseqs2 refuses to search with less than 1.1 GB, whatever it searches."""
    memory = psutil.virtual_memory()._replace(available=1 << 30)
    monkeypatch.setattr(psutil, "virtual_memory", lambda: memory)
    (tmp_path / "in.fasta").write_text(f">a\n{drawn(200, 1)}\n")
    mmseqs.run(tmp_path, "easy-search", "in.fasta", "in.fasta", "found.tsv", "tmp")
    assert (tmp_path / "found.tsv").read_text().split()[:3] == ["a", "a", "1.000"]
    monkeypatch.setattr(mmseqs, "LEAST_MB", 512)
    with pytest.raises(ValueError, match="Cannot fit databases into 511M"):
        mmseqs.run(tmp_path, "easy-search", "in.fasta", "in.fasta", "found.tsv", "tmp")
