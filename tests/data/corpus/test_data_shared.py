"""Shared machines: who may read what was derived, stores that can only be read, folders that are closed."""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from data.__main__ import main
from data.commands.digest import digest_command
from data.corpus.corpora import Corpora
from data.corpus.prepare import open_corpora, prepare_corpora
from data.settings import DataSettings
from data.store.token_store import TokenStore
from support.forked import NOBODY, opened_again, public_folder, without_rights
from support.inputs.token_stores import store_of

PROTEINS = [(f"q{i}", "ACDEFGHIKL"[i % 10] * (i % 7 + 1) + "MKT" * (i // 4 + 1)) for i in range(120)]
DERIVED = ("clusters-", "excluded-", "overlap-", "split-")


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path
    opened_again(tmp_path)


def recipe(folder: Path, store_dir: str = "stores") -> Path:
    """Writes tables and a recipe of all that is derived beside the sequences."""
    (folder / "clusters.tsv").write_text("".join(f"c{i % 40}\tq{i}\n" for i in range(120)))
    (folder / "exclude.tsv").write_text("q3\nq50\n")
    path = folder / "recipe.toml"
    path.write_text(
        f'[data]\nsources = ["{folder}/proteins.fasta"]\nclusters = "{folder}/clusters.tsv"\n'
        f'exclude = "{folder}/exclude.tsv"\nstore_dir = "{folder}/{store_dir}"\nvalidation_fraction = 0.2\n'
        "bin_tokens = 128\ncrop_tokens = 64\nbins_per_step = 4\nwindow_sequences = 32\n"
    )
    return path


def opened(folder: Path, store_dir: str = "stores", sources: Path | None = None) -> Corpora:
    """What a run opens: clusters and their members, exclusions, a split."""
    settings = DataSettings(
        sources=(str(sources or folder / "proteins.fasta"),),
        clusters=str(folder / "clusters.tsv"),
        exclude=str(folder / "exclude.tsv"),
        sample_by="cluster",
        store_dir=str(folder / store_dir),
        validation_fraction=0.2,
    )
    corpora = open_corpora(settings, prepare_corpora(settings))
    corpora.plan(0)
    assert corpora.parts[0].clusters is not None
    assert len(corpora.parts[0].clusters.members.clusters) == 40
    return corpora


def built(folder: Path) -> Path:
    """The store in `folder` with nothing derived from it."""
    store = store_of(folder / "own", PROTEINS)
    recipe(folder)
    shutil.copy(folder / "own/proteins.fasta", folder)
    return store.folder


@pytest.mark.parametrize("umask", [0o027, 0o002])
def test_what_is_derived_has_the_modes_of_the_umask(umask: int, folder: Path) -> None:
    built(folder)
    before = os.umask(umask)
    try:
        corpora = opened(folder)
        store = corpora.parts[0].store
    finally:
        os.umask(before)
    derived = [path for name in DERIVED for path in store.folder.glob(f"{name}*")]
    assert len(derived) == 4
    paths = [*derived, *(p for path in derived for p in path.rglob("*"))]
    assert {"members", "records.bin", "split.json", "clusters.json"} < {path.name for path in paths}
    wrong = {
        path.relative_to(folder): oct(path.stat().st_mode & 0o777)
        for path in paths
        if path.stat().st_mode & 0o777 != (0o777 if path.is_dir() else 0o666) & ~umask
    }
    assert wrong == {}


def test_another_user_finds_what_was_derived() -> None:
    with public_folder() as folder:
        built(folder)
        opened(folder)  # what it imports, the other user may have no right to read

        def first() -> None:
            opened(folder, "shared")
            list(digest_command(folder / "recipe.toml", [f"data.store_dir='{folder}/shared'"], 0, 2, 1, 0))

        def other() -> None:
            assert opened(folder, "shared").split_fingerprint == opened(folder).split_fingerprint
            digests = digest_command(folder / "recipe.toml", [f"data.store_dir='{folder}/shared'"], 0, 2, 1, 0)
            assert len(list(digests)) == 2

        before = os.umask(0o022)
        first()
        os.umask(before)
        names = sorted(path.name for path in folder.rglob("*"))
        assert without_rights(other, NOBODY) == 0
        assert sorted(path.name for path in folder.rglob("*")) == names


@pytest.mark.slow
def test_a_store_that_can_only_be_read_is_used(folder: Path) -> None:
    store = built(folder)
    expected = opened(folder)
    (folder / "own").chmod(0o555)
    store.chmod(0o555)
    before = sorted(os.listdir(store))

    def work() -> None:
        corpora = opened(folder, "mine", sources=store)
        assert corpora.split_fingerprint == expected.split_fingerprint
        assert corpora.validation.tolist() == expected.validation.tolist()
        assert main(["stats", str(store), "--store-dir", str(folder / "mine")]) == 0

    assert without_rights(work) == 0
    assert sorted(os.listdir(store)) == before
    (kept,) = (folder / "mine/derived").iterdir()
    assert kept.name == TokenStore(store).facts["hash"]
    names = sorted(path.name for path in kept.iterdir())
    assert [name.rpartition("-")[0] for name in names] == [
        "clusters",
        "excluded",
        "members-of-clusters",
        "overlap",
        "split",
    ]
    times = {path: path.stat().st_mtime_ns for path in kept.rglob("*")}
    assert without_rights(work) == 0
    assert {path: path.stat().st_mtime_ns for path in times} == times


def test_members_of_clusters_that_can_only_be_read(folder: Path) -> None:
    """The owner of the store had no use for them, and derived all the rest."""
    store = built(folder)
    opened(folder, "unused", sources=store)
    (clusters,) = store.glob("clusters-*")
    shutil.rmtree(clusters / "members")
    store.chmod(0o555)
    clusters.chmod(0o555)
    assert without_rights(lambda: opened(folder, "mine", sources=store)) == 0
    (kept,) = (folder / "mine/derived").iterdir()
    assert [path.name for path in kept.iterdir()] == [f"members-of-{clusters.name}"]


def test_a_folder_of_another_user_in_the_way(folder: Path) -> None:
    """As earlier versions left them, private."""
    store = built(folder)
    opened(folder, "unused", sources=store)
    for path in store.glob("*-*"):
        path.chmod(0o000)
    assert without_rights(lambda: opened(folder, "mine", sources=store)) == 0
    (kept,) = (folder / "mine/derived").iterdir()
    names = [path.name.rpartition("-")[0] for path in sorted(kept.iterdir())]
    assert names == ["clusters", "excluded", "members-of-clusters", "overlap", "split"]


def test_nowhere_to_write_is_one_line(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    store = built(folder)
    (folder / "mine").mkdir()
    for path in (store, folder / "mine"):
        path.chmod(0o555)

    def work() -> None:
        with pytest.raises(ValueError, match=r"choose another data\.store_dir") as caught:
            opened(folder, "mine", sources=store)
        assert str(folder / "mine/derived") in str(caught.value)
        assert "Permission denied" in str(caught.value)

    assert without_rights(work) == 0
    assert capfd.readouterr().err == ""


def test_closed_folders_are_one_line_for_every_command(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    store = built(folder)
    closed = folder / "closed"
    closed.mkdir()
    for path in ("proteins.fasta", "clusters.tsv", "exclude.tsv", "recipe.toml"):
        shutil.copy(folder / path, closed)
    shutil.copytree(store, closed / "store")
    (folder / "stores").mkdir()
    closed.chmod(0o000)
    fasta, own = closed / "proteins.fasta", folder / "proteins.fasta"
    to = ["--store-dir", folder / "stores"]
    digest = ["digest", folder / "recipe.toml", "--steps", "0:1"]
    alone = ["data.clusters=none", "data.exclude=none"]
    commands: list[tuple[list[object], Path]] = [
        (["build", fasta, *to], fasta),
        (["build", closed / "*.fasta", *to], closed),
        (["build", own, "--store-dir", closed / "stores"], closed / "stores"),
        (["build", own, "--output", closed / "store"], closed / "store"),
        (["stats", fasta, *to], fasta),
        (["stats", closed / "store", *to], closed / "store"),
        (["head", fasta, *to], fasta),
        (["head", own, "--store-dir", closed], closed),
        (["verify", closed / "store"], closed / "store"),
        (["digest", closed / "recipe.toml", "--steps", "0:1"], closed / "recipe.toml"),
        ([*digest, f"data.sources=['{fasta}']"], fasta),
        ([*digest, f"data.sources=['{closed}/store']"], closed / "store"),
        (
            [*digest, f"data.sources=['{fasta}']", "data.streaming=true", "data.clusters=none", "data.exclude=none"],
            fasta,
        ),
        ([*digest, f"data.clusters='{closed}/clusters.tsv'"], closed / "clusters.tsv"),
        ([*digest, f"data.exclude='{closed}/exclude.tsv'"], closed / "exclude.tsv"),
        ([*digest, f"data.store_dir='{closed}'"], closed),
        ([*digest, "data.sources=['synthetic:0']", *alone, f"data.store_dir='{closed}'"], closed),
        (["decontaminate", "--training", fasta, "--heldout", own, "--output", folder / "t.tsv", *to], fasta),
        (["decontaminate", "--training", own, "--heldout", own, "--output", closed / "t.tsv", *to], closed),
    ]

    def work() -> None:
        wrong = {}
        for words, path in commands:
            status = main([str(word) for word in words])
            said = capfd.readouterr()
            lines = said.err.splitlines()
            fine = status == 2 and len(lines) == 1 and lines[0].startswith("error: ") and str(path) in lines[0]
            if not (fine and "Permission denied" in lines[0]):
                wrong[" ".join(map(str, words))] = (status, said)
        assert wrong == {}

    assert without_rights(work) == 0, capfd.readouterr().err


def test_a_table_that_cannot_be_read_says_so(folder: Path) -> None:
    built(folder)

    def work() -> None:
        for name in ("clusters.tsv", "exclude.tsv"):
            (folder / name).chmod(0o000)
            with pytest.raises(ValueError, match=rf"/{name}: Permission denied; make it readable for this user$"):
                opened(folder)
            (folder / name).chmod(0o644)

    assert without_rights(work) == 0
