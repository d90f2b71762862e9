"""The token store and the split: content, fingerprint, reuse, and nothing half-built."""

import gzip
from pathlib import Path

import numpy as np
import pytest

from data.alphabet import decode
from data.split import split_by_cluster
from data.store import Store, open_or_build

PROTEINS = {"p1": "MKTAYIAKQRQ", "p2": "GG", "p3": "MKTAYIAKQRQ", "p4": "WWWWW"}


def fasta(path: Path, proteins: dict[str, str] = PROTEINS) -> Path:
    content = "".join(f">{name} note\n{letters}\n" for name, letters in proteins.items()).encode()
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)
    return path


def many(count: int = 400) -> dict[str, str]:
    return {f"q{i}": "ACDEFGHIKL"[i % 10] * (i % 7 + 1) + "MKT" * (i // 10 + 1) for i in range(count)}


def built(tmp_path: Path, *paths: Path, clusters: Path | None = None) -> Store:
    return open_or_build(paths, tmp_path / "stores", "refuse", clusters)


def test_holds_every_record(tmp_path: Path) -> None:
    store = built(tmp_path, fasta(tmp_path / "a.fasta"))
    assert store.num_records == 4
    assert [decode(store.residues(i)) for i in range(4)] == list(PROTEINS.values())
    assert [store.header(i) for i in range(4)] == [f"{name} note" for name in PROTEINS]
    assert store.num_residues(np.arange(4)).tolist() == [11, 2, 11, 5]


def test_fingerprint_is_of_content(tmp_path: Path) -> None:
    plain = built(tmp_path, fasta(tmp_path / "a.fasta")).fingerprint
    assert built(tmp_path, fasta(tmp_path / "a.fasta.gz")).fingerprint == plain
    swapped = dict(reversed(PROTEINS.items()))
    assert built(tmp_path, fasta(tmp_path / "b.fasta", swapped)).fingerprint != plain
    # The same residues, cut elsewhere: equal bytes in tokens.bin, another corpus.
    recut = {**PROTEINS, "p1": "MKTAYIAKQRQG", "p2": "G"}
    assert built(tmp_path, fasta(tmp_path / "c.fasta", recut)).fingerprint != plain


def test_is_reused_until_a_source_changes(tmp_path: Path) -> None:
    path = fasta(tmp_path / "a.fasta")
    first = built(tmp_path, path)
    stamp = (first.folder / "store.json").stat().st_mtime_ns
    assert built(tmp_path, path).folder == first.folder
    assert (first.folder / "store.json").stat().st_mtime_ns == stamp
    fasta(path, {**PROTEINS, "p5": "AAA"})
    assert built(tmp_path, path).num_records == 5


def test_a_bad_record_leaves_nothing(tmp_path: Path) -> None:
    good, bad = fasta(tmp_path / "a.fasta"), fasta(tmp_path / "b.fasta", {"p9": "MK!"})
    with pytest.raises(ValueError, match="p9"):
        built(tmp_path, good, bad)
    assert list((tmp_path / "stores").iterdir()) == []


def test_missing_source(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"none\.fasta: No such file.*data\.sources"):
        built(tmp_path, tmp_path / "none.fasta")


def test_clusters_are_held_out_whole(tmp_path: Path) -> None:
    proteins = many()
    table = tmp_path / "clusters.tsv"
    table.write_text("".join(f"c{i % 40}\tq{i}\n" for i in range(len(proteins))))
    store = built(tmp_path, fasta(tmp_path / "a.fasta", proteins), clusters=table)
    split = split_by_cluster(store, 0.2)
    held_out = {i % 40 for i in split.validation.tolist()}
    assert 2 <= len(held_out) <= 16  # 8 expected of 40
    assert sorted(split.validation.tolist()) == [i for i in range(400) if i % 40 in held_out]
    assert sorted([*split.training.tolist(), *split.validation.tolist()]) == list(range(400))


def test_equal_sequences_stay_together_without_clusters(tmp_path: Path) -> None:
    proteins = {**many(), **{f"copy{name}": letters for name, letters in many().items()}}
    split = split_by_cluster(built(tmp_path, fasta(tmp_path / "a.fasta", proteins)), 0.3)
    held_out = set(split.validation.tolist())
    assert all((i in held_out) == (i + 400 in held_out) for i in range(400))
    assert 176 <= len(held_out) <= 304  # 240 expected; 3.5 standard deviations of 18


def test_mmseqs2_names_records_by_accession(tmp_path: Path) -> None:
    proteins = {"sp|P1|A_HUMAN": "MKT", "gi|12|gb|AAP5.2|": "GGG", "CBH4": "WWW", "tr|Q2|B_YEAST": "AAA"}
    table = tmp_path / "clusters.tsv"
    table.write_text("c1\tP1\nc1\tAAP5.2\nc2\tCBH4\nc3\ttr|Q2|B_YEAST\n")
    store = built(tmp_path, fasta(tmp_path / "a.fasta", proteins), clusters=table)
    first, second, third, fourth = store.clusters.tolist()
    assert first == second
    assert len({first, third, fourth}) == 3


def test_a_record_outside_the_cluster_table(tmp_path: Path) -> None:
    table = tmp_path / "clusters.tsv"
    table.write_text("c1\tp1\nc1\tp2\nc2\tp3\n")
    with pytest.raises(ValueError, match=r"'p4' is not listed in .*clusters\.tsv"):
        built(tmp_path, fasta(tmp_path / "a.fasta"), clusters=table)
    table.write_text("c1 p1\n")
    with pytest.raises(ValueError, match=r"clusters\.tsv: line 1 has 1 tab-separated columns"):
        built(tmp_path, fasta(tmp_path / "a.fasta"), clusters=table)


def test_a_split_with_an_empty_side(tmp_path: Path) -> None:
    store = built(tmp_path, fasta(tmp_path / "a.fasta"))
    with pytest.raises(ValueError, match=r"0\.001 of 3 clusters \(4 records\).*0 records for validation"):
        split_by_cluster(store, 0.001)


def test_a_store_that_was_cut_short_is_named(tmp_path: Path) -> None:
    store = built(tmp_path, fasta(tmp_path / "a.fasta"))
    (store.folder / "tokens.bin").write_bytes(b"\4" * 10)
    with pytest.raises(ValueError, match=r"tokens\.bin has 10 bytes, store\.json says 29: it was cut short; delete"):
        _ = built(tmp_path, tmp_path / "a.fasta").num_records
