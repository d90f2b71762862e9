"""Cluster tables: which cluster each record is in, the members of each, and what a table may not be."""

import gzip
import hashlib
import random
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from backports import zstd

from data.homology import name_table
from data.homology.clusters import excluded, open_clusters
from data.store.token_store import TokenStore
from support.inputs.token_stores import store_of

NAMES = ("sp|P1|A_HUMAN first", "gi|12|gb|AAP5.2|", "CBH4 a|b", "tr|Q2|B_YEAST")
LETTERS = ("MKTAYIAKQRQ", "GG", "MKTAYIAKQRQ", "WWWWW")


@pytest.fixture
def store(tmp_path: Path) -> TokenStore:
    return store_of(tmp_path / "store", zip(NAMES, LETTERS, strict=True))


def table(tmp_path: Path, text: str | bytes, name: str = "clusters.tsv") -> Path:
    path = tmp_path / name
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


def hash_of(cluster: str) -> int:
    return int.from_bytes(hashlib.md5(cluster.encode()).digest()[8:], "little")


def folders(store: TokenStore) -> set[str]:
    """What stands in the store's folder besides the store itself."""
    return {path.name for path in store.folder.iterdir() if path.is_dir()}


def test_a_table_of_pairs(tmp_path: Path, store: TokenStore) -> None:
    # By accession, as MMseqs2 writes, or by the whole first word; rows of others and repeated rows do no harm.
    text = "é\tP1\nc1\tAAP5.2\nother\tnobody\nc2\tCBH4\nc1\ttr|Q2|B_YEAST\nc2\tCBH4\n"
    expected = [hash_of("é"), hash_of("c1"), hash_of("c2"), hash_of("c1")]
    mixed = text.replace("\n", "\r\n", 2)
    for content in (
        text,
        mixed,
        gzip.compress(mixed.encode()),
        text.replace("\n", "\r\n"),
        text[:-1],
        gzip.compress(text.encode()),
        f"\n{text}\n",
    ):
        clusters = open_clusters(store, table(tmp_path, content))
        assert clusters.of_records.dtype == np.uint64
        assert clusters.of_records.tolist() == expected
    assert isinstance(clusters.of_records, np.memmap)
    assert str(tmp_path / "clusters.tsv") in clusters.description


def test_the_first_name_that_is_listed_counts(tmp_path: Path, store: TokenStore) -> None:
    rows = "a\tP1\nb\tsp|P1|A_HUMAN\nc\tAAP5.2\nc\tCBH4\nc\tQ2\n"
    clusters = open_clusters(store, table(tmp_path, rows))
    assert clusters.of_records.tolist() == [hash_of(c) for c in "bccc"]


def test_quotes_are_letters(tmp_path: Path) -> None:
    store = store_of(tmp_path / "store", [('"p1 x', "MK"), ("p\"2'", "GG"), ("#3", "WW")])
    clusters = open_clusters(store, table(tmp_path, '"c\t"p1\n\'\tp"2\'\n"c\t#3\n'))
    assert clusters.of_records.tolist() == [hash_of('"c'), hash_of("'"), hash_of('"c')]


def test_uniprot_idmapping(tmp_path: Path) -> None:
    def row(accession: str, entry: str, uniref100: str, uniref90: str, uniref50: str) -> str:
        columns = [""] * 22
        columns[0], columns[1], columns[2], columns[7:10] = accession, entry, "12; 13", (uniref100, uniref90, uniref50)
        columns[21] = "123; 456"
        return "\t".join(columns) + "\n"

    names = ["sp|P1|A_HUMAN", "UniRef90_P2 name n=3", "UniRef100_P3", "B_YEAST", "UniRef50_P1"]
    store = store_of(tmp_path / "store", zip(names, ("MK", "MKT", "MKTA", "G", "GW"), strict=True))
    rows = [
        row("P1", "A_HUMAN", "UniRef100_P1", "UniRef90_P1", "UniRef50_P1"),
        row("P2", "B_HUMAN", "UniRef100_P2", "UniRef90_P2", "UniRef50_P1"),
        row("P3", "C_HUMAN", "UniRef100_P3", "UniRef90_P2", "UniRef50_P1"),
        row("P4", "B_YEAST", "", "", "UniRef50_P4"),
        row("P5", "D_YEAST", "UniRef100_P5", "", ""),
    ]
    content = "".join(rows)
    for written in (content, gzip.compress(content.encode())):
        clusters = open_clusters(store, table(tmp_path, written, "idmapping_selected.tab"))
        expected = ["UniRef50_P1", "UniRef50_P1", "UniRef50_P1", "UniRef50_P4", "UniRef50_P1"]
        assert clusters.of_records.tolist() == [hash_of(c) for c in expected]
    store = store_of(tmp_path / "other", [("P1", "MK"), ("P5", "GG")])
    with pytest.raises(ValueError, match=r"record 'P5' is not listed in .*idmapping_selected\.tab"):
        open_clusters(store, table(tmp_path, content, "idmapping_selected.tab"))
    with pytest.raises(ValueError, match=r"line 3 has 2 tab-separated columns; it must have 22, .*idmapping_selected"):
        open_clusters(store, table(tmp_path, "".join(rows[:2]) + "c1\tP5\n", "idmapping_selected.tab"))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"c1\tP1\nc1 AAP5.2\n", "line 2 has 1 tab-separated columns; it must have two, cluster and record id"),
        (b"c1 P1\n", "line 1 has 1 tab-separated columns"),
        (b"c1\tP1\tx\n", "line 1 has 3 tab-separated columns"),
        (b"c1\tP1\nc1\t\n", "line 2 has 1 tab-separated columns"),
        (b"c1\tP1\n\tP2\n", "line 2 has 1 tab-separated columns"),
        (b"c1\tP1\nc\xff\tP2\n", "line 2 is not UTF-8"),
        # Without a time: the workers of a parallel run must collect the same names.
        (gzip.compress(b"c1\tP1\n" * 100_000, mtime=0)[:-400], "cannot be read after line"),
        (
            zstd.compress(b"c1\tP1\n"),
            "is a zstd file; a table of records is read plain or as gzip: unpack it first",
        ),
        (b"c1\tP1\r\nc1\tAA\rP5.2\nc2\tCBH4\n", "line 2 has a carriage return inside; end lines with"),
        (b"", "record 'sp|P1|A_HUMAN' or 'P1' is not listed in"),
        (b"c1\tP1\nc1\tAAP5.2\nc2\tQ2\n", "record 'CBH4' is not listed in"),
        (b"c1\tP1\nc1\tAAP5.2\nc2\tCBH4\n", "record 'tr|Q2|B_YEAST' or 'Q2' is not listed in"),
        (b"c1\tP1\nc2\tP1\nc1\tAAP5.2\nc2\tCBH4\nc2\tQ2\n", "'P1' is listed in two clusters"),
        (b"c1\tP1\nc2\tAAP5.2\nc2\tCBH4\nc2\tQ2\nc3\tQ2\n", "'Q2' is listed in two clusters"),
    ],
)
def test_a_table_that_does_not_fit(tmp_path: Path, store: TokenStore, content: bytes, message: str) -> None:
    path = table(tmp_path, content)
    with pytest.raises(ValueError, match=r".+") as caught:
        open_clusters(store, path)
    assert message in str(caught.value)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)
    assert folders(store) == set()


def test_a_table_that_is_not_there(tmp_path: Path, store: TokenStore) -> None:
    with pytest.raises(ValueError, match=r"none\.tsv: No such file or directory; check data\.clusters"):
        open_clusters(store, tmp_path / "none.tsv")
    with pytest.raises(ValueError, match=r"is no file; data\.clusters names"):
        open_clusters(store, tmp_path)


def test_is_made_once_for_each_table(tmp_path: Path, store: TokenStore, monkeypatch: pytest.MonkeyPatch) -> None:
    path = table(tmp_path, "c1\tP1\nc1\tAAP5.2\nc2\tCBH4\nc3\tQ2\n")
    first = open_clusters(store, path)
    fingerprint = first.fingerprint
    stamp = first.folder.stat().st_mtime_ns
    monkeypatch.setattr(name_table, "session", None)  # a second join fails
    assert open_clusters(store, path).fingerprint == fingerprint
    assert first.folder.stat().st_mtime_ns == stamp
    monkeypatch.undo()
    other = open_clusters(store, table(tmp_path, "c3\tQ2\nc1\tP1\nc1\tAAP5.2\nc2\tCBH4\n", "shuffled.tsv"))
    assert other.folder != first.folder
    assert other.fingerprint == fingerprint  # one clustering
    assert open_clusters(store, table(tmp_path, "c3\tQ2\nc1\tP1\nc2\tAAP5.2\nc2\tCBH4\n")).fingerprint != fingerprint


def test_without_a_table_equal_sequences_share_a_cluster(store: TokenStore) -> None:
    clusters = open_clusters(store, None)
    assert np.array_equal(clusters.of_records, store.digests)
    first, second, third, fourth = clusters.of_records.tolist()
    assert first == third
    assert len({first, second, fourth}) == 3
    assert folders(store) == set()
    assert clusters.description == "equal sequences share a cluster"


@pytest.mark.parametrize("with_table", [False, True])
def test_members_are_the_other_way_round(tmp_path: Path, with_table: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(name_table, "BLOCK", 64)  # many batches, so that clusters straddle them
    numbers = random.Random(0)
    store = store_of(tmp_path / "store", [(f"q{i}", "ACDEFGHIKL"[numbers.randrange(10)] * 3) for i in range(1000)])
    path = table(tmp_path, "".join(f"c{numbers.randrange(200)}\tq{i}\n" for i in range(1000)))
    clusters = open_clusters(store, path if with_table else None)
    members = clusters.members
    expected: dict[int, list[int]] = {}
    for record, cluster in enumerate(clusters.of_records.tolist()):
        expected.setdefault(cluster, []).append(record)
    assert members.clusters.tolist() == sorted(expected)
    bounds = members.offsets.tolist()
    assert [members.records[a:b].tolist() for a, b in pairwise(bounds)] == [
        expected[cluster] for cluster in sorted(expected)
    ]
    assert (members.clusters.dtype, members.offsets.dtype, members.records.dtype) == (np.uint64, np.uint64, np.uint32)
    assert all(isinstance(array, np.memmap) for array in members)
    monkeypatch.setattr(name_table, "session", None)
    again = open_clusters(store, path if with_table else None).members
    assert all(np.array_equal(a, b) for a, b in zip(members, again, strict=True))


def test_a_clustering_that_was_cut_short_is_named(tmp_path: Path, store: TokenStore) -> None:
    path = table(tmp_path, "c1\tP1\nc1\tAAP5.2\nc2\tCBH4\nc3\tQ2\n")
    folder = open_clusters(store, path).folder
    (folder / "of_records.bin").write_bytes(bytes(24))
    with pytest.raises(ValueError, match=r"of_records\.bin has 24 bytes, it must have 32: .*delete .*/clusters-"):
        _ = open_clusters(store, path).of_records


def test_excluded_names(tmp_path: Path, store: TokenStore, monkeypatch: pytest.MonkeyPatch) -> None:
    path = table(tmp_path, "Q2\tx\t0.9\nsp|P1|A_HUMAN\ty\t1.0\nP1\tz\t1.0\nnobody\tz\t1.0\n")
    with pytest.warns(UserWarning, match="1 of 4 names are not in"):
        assert excluded(store, path).tolist() == [0, 3]
    monkeypatch.setattr(name_table, "session", None)
    with pytest.warns(UserWarning, match="1 of 4 names are not in"):
        again = excluded(store, path)
    assert again.dtype == np.int64
    assert again.tolist() == [0, 3]


def test_a_name_that_several_records_have_excludes_all_of_them_and_says_so(tmp_path: Path) -> None:
    headers = [*(f"hypothetical protein {i}" for i in range(5)), "sp|P1|A", "tr|P1|B", "q7"]
    store = store_of(tmp_path / "store", [(header, "MK" * (i + 1)) for i, header in enumerate(headers)])
    path = table(tmp_path, "hypothetical\nP1\nq7\nsp|P1|A\n")
    message = (
        r"clusters\.tsv: 2 of 4 names are shared by 7 records of .*, and all of these are excluded; a name is the first"
    )
    for _ in range(2):  # written, and then reused
        with pytest.warns(UserWarning, match=message):
            assert excluded(store, path).tolist() == list(range(8))


@pytest.mark.filterwarnings("error")
def test_excluded_tables_at_the_edges(tmp_path: Path, store: TokenStore) -> None:
    assert excluded(store, table(tmp_path, "", "empty.tsv")).tolist() == []
    assert excluded(store, table(tmp_path, "CBH4\nAAP5.2", "names.txt")).tolist() == [1, 2]
    with pytest.raises(ValueError, match=r"lists 2 names and none of them is in .*check data\.exclude"):
        excluded(store, table(tmp_path, "a\nb\n", "others.txt"))
    with pytest.raises(ValueError, match="line 2 has 1 tab-separated columns; it must have 2, as the first line has"):
        excluded(store, table(tmp_path, "CBH4\tx\nP1\n", "uneven.tsv"))
    with pytest.raises(ValueError, match=r"none\.tsv: No such file or directory; check data\.exclude"):
        excluded(store, tmp_path / "none.tsv")


def test_many_records_in_several_batches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(name_table, "BLOCK", 100)
    numbers = random.Random(1)
    of = [numbers.randrange(500) for _ in range(2500)]
    store = store_of(tmp_path / "store", [(f"sp|P{i}|N{i}", "MK") for i in range(2500)])
    rows = [f"c{cluster}\t{numbers.choice(['P{0}', 'sp|P{0}|N{0}']).format(i)}\n" for i, cluster in enumerate(of)]
    numbers.shuffle(rows)
    clusters = open_clusters(store, table(tmp_path, "".join(rows)))
    assert clusters.of_records.tolist() == [hash_of(f"c{cluster}") for cluster in of]
    # A gap right at the seam of two batches is a gap too.
    for missing in (0, 99, 100, 2499):
        kept = "".join(row for row in rows if f"P{missing}\n" not in row and f"N{missing}\n" not in row)
        with pytest.raises(ValueError, match=rf"record 'sp\|P{missing}\|N{missing}' or 'P{missing}' is not listed"):
            open_clusters(store, table(tmp_path, kept, f"without-{missing}.tsv"))


def test_a_record_whose_names_straddle_two_batches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(name_table, "BLOCK", 100)
    store = store_of(tmp_path / "store", [(f"sp|P{i}|N{i}", "MK") for i in range(2500)])
    # One row of the first record and two of each other, so that batches of an even length end within a record.
    rows = ["c0\tP0\n", *(f"c{i}\tsp|P{i}|N{i}\nd{i}\tP{i}\n" for i in range(1, 2500))]
    clusters = open_clusters(store, table(tmp_path, "".join(rows)))
    assert clusters.of_records.tolist() == [hash_of(f"c{i}") for i in range(2500)]
