"""Homology by MMseqs2: clusters that keep relatives together, and held-out proteins that no relative trains for."""

import gzip
import json
import random
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
from Bio.SeqIO.FastaIO import SimpleFastaParser

from data.__main__ import main
from data.alphabet import STANDARD_RESIDUES, decode
from data.homology import mmseqs, peptides
from data.homology import mmseqs as homology
from data.homology.clusters import excluded, open_clusters
from data.homology.mmseqs import cluster_by_identity, decontaminate
from data.homology.split import open_split
from data.sources.synthetic import Families, write_corpus
from data.store.token_store import TokenStore
from support.inputs.token_stores import store_from, store_of
from support.places import REAL
from zymogen.processes import parent

needs_mmseqs = pytest.mark.skipif(shutil.which("mmseqs") is None, reason="no program 'mmseqs' (apt install mmseqs2)")
needs_real = pytest.mark.skipif(not REAL.is_dir(), reason="no real proteins beside the project (shared/data/pretrain)")

MEMBERS = 4


@pytest.fixture(scope="module")
def families(tmp_path_factory: pytest.TempPathFactory) -> list[tuple[str, str]]:
    """(name, letters) of 12 families of 4 members, 15 % of sites drawn again in each."""
    settings = Families(num_families=12, members_per_family=MEMBERS, mean_residues=120, min_residues=80)
    path, table = write_corpus(tmp_path_factory.mktemp("families"), settings)
    letters = dict(read(path))
    return [(name, letters[name]) for _, name in sorted(rows(table))]


def read(path: Path) -> list[tuple[str, str]]:
    """(first word of the header, letters) of a FASTA.gz, by other means than ours."""
    with gzip.open(path, "rt") as file:
        return [(title.split()[0], letters) for title, letters in SimpleFastaParser(file)]


def rows(path: Path) -> list[list[str]]:
    return [line.split("\t") for line in path.read_text().splitlines()]


@pytest.mark.slow
@needs_mmseqs
def test_families_are_clusters(tmp_path: Path, families: list[tuple[str, str]]) -> None:
    short = [("short", "MKT"), ("again", "MKT"), ("copy", families[0][1])]
    store = store_of(tmp_path, [*families, *short])
    clusters = cluster_by_identity(store, 0.5)
    of_records = clusters.of_records.tolist()
    of_families = [set(of_records[i : i + MEMBERS]) for i in range(0, len(families), MEMBERS)]
    assert [len(found) for found in of_families] == [1] * 12
    assert len(set.union(*of_families)) == 12
    *_, short_1, short_2, copy = of_records
    assert short_1 == short_2
    assert copy == of_records[0]
    assert len(set(of_records)) == 13
    assert set(of_records) <= set(store.digests.tolist())  # the representative's digest
    facts = json.loads((clusters.folder / "clusters.json").read_text())
    version = subprocess.check_output(["mmseqs", "version"], text=True).strip()
    assert facts["tool"] == f"MMseqs2 {version}; {peptides.NAME}"  # "MKT" is a peptide
    assert facts["min_identity"] == 0.5
    assert facts["distinct_sequences"] == len(families) + 1
    assert "--min-seq-id 0.5 -c 0.8 --cov-mode 0" in facts["command"]
    assert sorted(path.name for path in clusters.folder.iterdir()) == ["clusters.json", "of_records.bin"]


@pytest.mark.slow
@needs_mmseqs
def test_the_same_sequences_give_the_same_clusters(
    tmp_path: Path, families: list[tuple[str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    some = families[:24]
    store = store_of(tmp_path / "a", some)
    first = cluster_by_identity(store, 0.7)
    shuffled = store_of(tmp_path / "b", reversed(some))
    assert cluster_by_identity(shuffled, 0.7).of_records[::-1].tolist() == first.of_records.tolist()
    # Found again without MMseqs2; another identity is another clustering.
    monkeypatch.setattr(shutil, "which", lambda name: None)
    assert cluster_by_identity(store, 0.7).fingerprint == first.fingerprint
    with pytest.raises(ValueError, match=r"data\.split_identity needs MMseqs2.*apt install mmseqs2.*bioconda mmseqs2"):
        cluster_by_identity(store, 0.71)


@pytest.mark.prove
@needs_mmseqs
def test_a_larger_corpus_is_clustered_in_cascades(
    tmp_path: Path, families: list[tuple[str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(homology, "EXHAUSTIVE", 19)
    clusters = cluster_by_identity(store_of(tmp_path, families[:20]), 0.5)
    of_families = [set(clusters.of_records[i : i + MEMBERS].tolist()) for i in range(0, 20, MEMBERS)]
    assert [len(found) for found in of_families] == [1] * 5
    assert "--single-step-clustering" not in clusters.facts["command"]


def pairs_across(store: TokenStore, validation: np.ndarray, folder: Path) -> int:
    """Pairs of a validation and another record that MMseqs2 aligns at 30 % over 80 % of both."""
    folder.mkdir()
    for name, side in (("a", validation), ("b", np.setdiff1d(np.arange(store.num_records), validation))):
        with (folder / name).open("w") as file:
            for record in side.tolist():
                file.write(f">{record}\n{decode(store.residues(record))}\n")
    options = ["--min-seq-id", "0.3", "-c", "0.8", "--cov-mode", "0", "-s", "7.5", "--max-seqs", "1000", "-v", "1"]
    subprocess.run(["mmseqs", "easy-search", "a", "b", "out", "tmp", *options], cwd=folder, check=True)
    return len(rows(folder / "out"))


@pytest.mark.prove
@needs_mmseqs
@needs_real
def test_no_relative_on_the_other_side_of_real_proteins(tmp_path: Path) -> None:
    store = store_of(tmp_path, read(REAL / "prokka_sprot_mitochondria.fasta.gz")[::8])
    clusters = cluster_by_identity(store, 0.3)
    split = open_split(store, clusters, 0.25, None)
    training = split.is_training(np.arange(store.num_records))
    assert not set(clusters.of_records[training]) & set(clusters.of_records[split.validation])
    assert pairs_across(store, split.validation, tmp_path / "by-identity") == 0
    by_content = open_split(store, open_clusters(store, None), 0.25, None)
    assert pairs_across(store, by_content.validation, tmp_path / "by-content") > 50


@pytest.mark.slow
@needs_mmseqs
def test_a_held_out_family_is_removed(tmp_path: Path, families: list[tuple[str, str]]) -> None:
    heldout, rest = families[:2], families[2:]
    training = store_of(tmp_path / "training", [*rest, ("copy|x", heldout[0][1]), ("short", "MKT")])
    against = store_of(tmp_path / "heldout", [*heldout, ("tiny", "MKT")])
    output = tmp_path / "similar.tsv"
    assert decontaminate(training, against, 0.5, 0.8, output) == 4
    found = rows(output)
    assert [row[0] for row in found] == [rest[0][0], rest[1][0], "copy|x", "short"]
    assert {row[1] for row in found[:2]} <= {name for name, _ in heldout}
    assert found[2][1:] == [heldout[0][0], "1.000", "1.000"]
    assert found[3][1:] == ["tiny", "1.000", "1.000"]
    assert all(0.5 <= float(row[2]) < 1.0 and float(row[3]) > 0.8 for row in found[:2])
    assert excluded(training, output).tolist() == [0, 1, len(rest), len(rest) + 1]
    assert {path.name for path in tmp_path.iterdir()} == {"training", "heldout", "similar.tsv"}


@pytest.mark.slow
@needs_mmseqs
def test_fragments_and_what_contains_a_held_out_protein(tmp_path: Path) -> None:
    numbers = random.Random(3)

    def drawn(length: int) -> str:
        return "".join(numbers.choices(STANDARD_RESIDUES, k=length))

    protein = drawn(200)
    training = [("contains", drawn(300) + protein), ("fragment", protein[40:120]), ("other", drawn(200))]
    training.append(("half", drawn(150) + protein[:90] + drawn(150)))
    stores = store_of(tmp_path / "a", training), store_of(tmp_path / "b", [("p", protein)])
    assert decontaminate(*stores, 0.9, 0.8, tmp_path / "out.tsv") == 2
    assert [row[0] for row in rows(tmp_path / "out.tsv")] == ["contains", "fragment"]
    assert decontaminate(*stores, 0.9, 0.4, tmp_path / "out.tsv") == 3


@pytest.mark.slow
@needs_mmseqs
def test_nothing_similar_and_nothing_but_equal(tmp_path: Path, families: list[tuple[str, str]]) -> None:
    training = store_of(tmp_path / "a", families[4:8])
    output = tmp_path / "out.tsv"
    assert decontaminate(training, store_of(tmp_path / "b", families[:2]), 0.9, 0.8, output) == 0
    assert output.read_text() == ""
    assert excluded(training, output).tolist() == []
    assert decontaminate(training, training, 1.0, 1.0, output) == 4


@pytest.mark.prove
@needs_mmseqs
@needs_real
def test_exact_duplicates_of_a_real_proteome(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = REAL / "orthofinder_M_agalactiae.faa.gz"
    store = store_from(path, tmp_path / "stores")
    members = open_clusters(store, None).members
    firsts = np.sort(members.records[members.offsets[:-1].astype(np.int64)])
    again = np.setdiff1d(np.arange(store.num_records), firsts)
    assert len(again) == 59

    def written(name: str, records: np.ndarray) -> Path:
        fasta = tmp_path / name
        fasta.write_text("".join(f">{store.header(r)}\n{decode(store.residues(r))}\n" for r in records.tolist()))
        return fasta

    training = [str(written("copies.faa", again)), str(REAL / "orthofinder_M_genitalium.faa.gz")]
    output = tmp_path / "similar.tsv"
    heldout = [str(written("firsts.faa", firsts))]
    words = ["--min-identity", "1", "--min-coverage", "1", "--store-dir", str(tmp_path / "stores"), "--output"]
    assert main(["decontaminate", "--training", *training, "--heldout", *heldout, *words, str(output)]) == 0
    said = capsys.readouterr().out
    assert said.startswith("59 of 535 training records are similar to one of 761 held-out records")
    assert f"data.exclude={output}" in said
    assert [row[0] for row in rows(output)] == [store.header(r).split()[0] for r in again.tolist()]
    assert {(row[2], row[3]) for row in rows(output)} == {("1.000", "1.000")}


def test_without_mmseqs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    store = store_of(tmp_path, [("p1", "MKT" * 10), ("p2", "GGG" * 10)])
    with pytest.raises(ValueError, match=r"data\.split_identity needs MMseqs2.*apt install mmseqs2.*bioconda mmseqs2"):
        cluster_by_identity(store, 0.3)
    with pytest.raises(ValueError, match=r"python -m data decontaminate needs MMseqs2"):
        decontaminate(store, store, 0.3, 0.8, tmp_path / "out.tsv")


def failing(folder: Path) -> None:
    """A program 'mmseqs' that has a version and fails at everything else."""
    folder.mkdir()
    program = folder / "mmseqs"
    program.write_text(
        "#!/bin/sh\n[ $1 = version ] && echo 14/x && exit 0\necho 'No space left on the moon' >&2\nexit 3\n"
    )
    program.chmod(0o755)


def test_what_mmseqs_said_is_passed_on_and_nothing_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    failing(tmp_path / "bin")
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/bin:/usr/bin")
    store = store_of(tmp_path / "a", [("p1", "MKT" * 10), ("p2", "GGG" * 10)])
    with pytest.raises(ValueError, match="mmseqs easy-cluster ended with status 3: No space left on the moon"):
        cluster_by_identity(store, 0.3)
    folders = [path.name for path in store.folder.iterdir() if path.is_dir()]
    assert folders == ["members-of-equal-sequences"]
    other = store_of(tmp_path / "b", [("p1", "WWW")])
    with pytest.raises(ValueError, match="mmseqs easy-search ended with status 3"):
        decontaminate(store, other, 0.3, 0.8, tmp_path / "out.tsv")
    assert {path.name for path in tmp_path.iterdir()} == {"a", "b", "bin"}


def test_mmseqs_is_told_that_it_gets_proteins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[str] = []

    def ran(words: list[str], work: Path) -> subprocess.CompletedProcess[bytes]:
        given.extend(words)
        return subprocess.CompletedProcess(words, 0, b"")

    monkeypatch.setattr(parent, "run", ran)
    mmseqs.run(tmp_path, "easy-cluster", "in.fasta")
    assert given[given.index("--dbtype") + 1] == "1"  # 0 guesses, and dies of three records of 90 bases


@pytest.mark.parametrize("value", [0.0, 1.5, -0.3, float("nan")])
def test_fractions_outside_their_range(tmp_path: Path, value: float) -> None:
    store = store_of(tmp_path, [("p1", "MKT")])
    with pytest.raises(ValueError, match=r"data\.split_identity is .*; it must lie in \(0, 1\]"):
        cluster_by_identity(store, value)
    with pytest.raises(ValueError, match=r"min_coverage is .*; it must lie in \(0, 1\]"):
        decontaminate(store, store, 0.5, value, tmp_path / "out.tsv")


def test_an_output_in_no_folder(tmp_path: Path) -> None:
    store = store_of(tmp_path, [("p1", "MKT")])
    with pytest.raises(ValueError, match="none is no folder; create it"):
        decontaminate(store, store, 0.5, 0.5, tmp_path / "none" / "out.tsv")


def test_an_output_that_is_a_file_of_the_users(tmp_path: Path) -> None:
    store, output = store_of(tmp_path, [("p1", "MKT")]), tmp_path / "mine.fasta"
    for content in (b">p1\nMKT\n", b"p1\tp2\tp3\n", b"p1\tp2\t0.5\tx\n", b"\xff\0", b"p1\tp2\t5000\t7000\n"):
        output.write_bytes(content)
        with pytest.raises(ValueError, match=r"mine\.fasta is there, and no table that decontaminate wrote; "):
            decontaminate(store, store, 0.5, 0.5, output)
        assert output.read_bytes() == content
