"""Damage of what is derived from a store: missing, cut or changed, one error that names the file and the remedy."""

import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from data.corpus.corpora import Corpora
from data.corpus.prepare import open_corpora, prepare_corpora
from data.homology.clusters import excluded, open_clusters
from data.homology.split import open_split
from data.settings import DataSettings, IngestSettings
from data.store import derived
from data.store.build import build_into
from data.store.token_store import TokenStore, hash_of
from support.forked import opened_again, without_rights
from support.inputs.raw_store import flip
from support.inputs.seeded_source import SeededSource


@pytest.fixture
def store(tmp_path: Path) -> TokenStore:
    return build_into(tmp_path / "store", [SeededSource("s")], "count", IngestSettings())


@pytest.fixture
def settings(tmp_path: Path) -> DataSettings:
    """A corpus with everything that is derived from one."""
    names = [f"p{n}" for n in range(120)]
    proteins = (
        f">{name}\n{'ACDEFGHIKL' * (n % 7)}MK{'ACDEFGHIKL'[n % 10]}{'ACDEFGHIKL'[n // 10 % 10]}\n"
        for n, name in enumerate(names)
    )
    (tmp_path / "a.fasta").write_text("".join(proteins))
    (tmp_path / "clusters.tsv").write_text("".join(f"c{n // 3}\t{name}\n" for n, name in enumerate(names)))
    (tmp_path / "excluded.tsv").write_text("p3\np50\nunknown\n")
    return DataSettings(
        sources=(str(tmp_path / "a.fasta"),),
        clusters=str(tmp_path / "clusters.tsv"),
        exclude=str(tmp_path / "excluded.tsv"),
        sample_by="cluster",
        store_dir=str(tmp_path / "stores"),
        validation_fraction=0.2,
        crop_tokens=60,
        bin_tokens=128,
        bins_per_step=2,
        window_sequences=32,
    )


def opened(settings: DataSettings) -> Corpora:
    with pytest.warns(UserWarning, match="1 of 3 names"):
        corpora = open_corpora(settings, prepare_corpora(settings))
    corpora.plan(0)
    assert corpora.parts[0].clusters is not None
    _ = corpora.parts[0].clusters.members
    return corpora


CUTS: dict[str, Callable[[bytes], bytes]] = {
    "cut": lambda content: content[: len(content) // 2],
    "zeros": lambda content: bytes(len(content)),
    "another": lambda _: b'{"theme": "dark"}',
    "a list": lambda _: b"[1, 2]",
}


@pytest.mark.filterwarnings("ignore:.*names are not in")
@pytest.mark.parametrize("how", ["cut", *(pytest.param(name, marks=pytest.mark.slow) for name in ("zeros", "another"))])
@pytest.mark.parametrize(
    "pattern", ["split-*/split.json", "clusters-*/clusters.json", "excluded-*/excluded.json", "overlap-*/overlap.json"]
)
def test_derived_json_that_was_cut_names_its_file(settings: DataSettings, pattern: str, how: str) -> None:
    opened(settings)
    (path,) = Path(settings.store_dir).glob(f"*/{pattern}")
    content = path.read_bytes()
    path.write_bytes(CUTS[how](content))
    with pytest.raises(ValueError, match=re.escape(str(path))) as caught:
        prepare_corpora(settings)
    assert str(caught.value).endswith(f"; delete {path.parent}, it is written again")
    for file in path.parent.rglob("*"):  # the remedy
        if file.is_file():
            file.unlink()
    if (path.parent / "members").exists():
        (path.parent / "members").rmdir()
    path.parent.rmdir()
    opened(settings)
    assert path.read_bytes() == content


@pytest.mark.parametrize("name", ["validation", "excluded"])
def test_a_flipped_bit_of_what_is_held_out(settings: DataSettings, name: str) -> None:
    opened(settings)
    (folder,) = Path(settings.store_dir).glob("*/split-*")
    flip(folder / f"{name}.bin", 0, 4)
    message = (
        rf"{re.escape(str(folder))}/{name}\.bin differs from what was written: its hash is \w+, it was \w+; "
        f"check the disk, and delete {re.escape(str(folder))}, it is written again"
    )
    with pytest.warns(UserWarning, match="names are not in"), pytest.raises(ValueError, match=message):
        prepare_corpora(settings)


@pytest.mark.filterwarnings("ignore:.*names are not in")
@pytest.mark.parametrize("name", ["members/clusters.bin", "members/offsets.bin", "members/records.bin", "records.bin"])
def test_a_cut_file_of_members_names_itself(store: TokenStore, tmp_path: Path, name: str) -> None:
    (tmp_path / "c.tsv").write_text("".join(f"c{n // 3}\t{store.header(n).split()[0]}\n" for n in range(500)))
    (tmp_path / "x.tsv").write_text(f"{store.header(3).split()[0]}\n")

    def opened() -> tuple[int, list[int]]:
        members = open_clusters(store, tmp_path / "c.tsv").members
        return len(members.records), excluded(store, tmp_path / "x.tsv").tolist()

    assert opened() == (500, [3])
    (path,) = store.folder.glob(f"*/{name}")
    content = path.read_bytes()
    path.write_bytes(content[:-3])
    with pytest.raises(ValueError, match=re.escape(f"{path} has {len(content) - 3} bytes, it must have ")) as caught:
        opened()
    assert str(caught.value).endswith(f"delete {path.parent}, it is written again")
    path.write_bytes(content)
    assert opened() == (500, [3])


def test_the_split_of_whole_files_is_as_before(store: TokenStore) -> None:
    clusters = open_clusters(store, None)
    once = open_split(store, clusters, 0.2, np.array([3, 5]))
    again = open_split(store, clusters, 0.2, np.array([3, 5]))
    assert np.array_equal(once.validation, again.validation)
    assert again.validation.dtype == np.dtype("<i8")


ARRAYS = (
    "clusters-*/of_records.bin",
    "clusters-*/members/clusters.bin",
    "clusters-*/members/offsets.bin",
    "clusters-*/members/records.bin",
    "excluded-*/records.bin",
    "split-*/validation.bin",
    "split-*/excluded.bin",
    "overlap-*/copies.bin",
)


@pytest.mark.filterwarnings("ignore:.*names are not in")
@pytest.mark.parametrize(
    "pattern", [ARRAYS[0], ARRAYS[5], *(pytest.param(n, marks=pytest.mark.slow) for n in (*ARRAYS[1:5], *ARRAYS[6:]))]
)
def test_an_array_that_is_missing_cut_or_changed(settings: DataSettings, pattern: str) -> None:
    first = opened(settings)
    (path,) = Path(settings.store_dir).glob(f"*/{pattern}")
    remedy = f"delete {path.parent}, it is written again"
    content, half = path.read_bytes(), path.stat().st_size // 2
    flipped = content[:half] + bytes(byte ^ 4 for byte in content[half : half + 1]) + content[half + 1 :]
    damage: list[tuple[bytes | None, str]] = [
        (None, f"{path} is missing; {remedy}"),
        (content + b"\0", f"{path} has {len(content) + 1} bytes, it must have "),
        (flipped, f"{path} differs from what was written: its hash is "),
    ]
    for damaged, said in damage if content else damage[:2]:
        path.unlink(missing_ok=True)
        if damaged is not None:
            path.write_bytes(damaged)
        with pytest.raises(ValueError, match=re.escape(said)) as caught:
            opened(settings)
        assert str(caught.value).endswith(remedy)
    shutil.rmtree(path.parent)
    again = opened(settings)
    assert (path.read_bytes(), again.split_fingerprint) == (content, first.split_fingerprint)


def test_long_arrays_are_read_once(settings: DataSettings, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[str] = []
    monkeypatch.setattr(derived, "hash_of", lambda file: read.append(Path(file.name).name) or hash_of(file))
    opened(settings)
    assert {"of_records.bin", "clusters.bin", "offsets.bin"} < set(read)
    read.clear()
    opened(settings)
    assert read == []  # in this process


@pytest.mark.filterwarnings("ignore:.*names are not in")
@pytest.mark.parametrize("name", ["split.json", "validation.bin"])
def test_what_another_user_derived_is_theirs_to_delete(settings: DataSettings, tmp_path: Path, name: str) -> None:
    opened(settings)
    (path,) = Path(settings.store_dir).glob(f"*/split-*/{name}")
    store, derived = path.parent.parent, path.parent
    path.write_bytes(b"[]")
    mine = replace(settings, sources=(str(store),), store_dir=str(tmp_path / "mine"))
    copied = replace(mine, sources=(str(tmp_path / "copy"),))
    for folder in (derived, store):
        folder.chmod(0o555)

    def work() -> None:
        with pytest.raises(ValueError, match=re.escape(str(path))) as caught:
            prepare_corpora(mine)
        said = f"; ask the owner of {derived} to delete it, as this user cannot, or copy the store without it and name "
        assert said in str(caught.value).replace("check the disk, and ask", "ask")
        shutil.copytree(store, tmp_path / "copy", ignore=lambda *_: [derived.name])
        (tmp_path / "copy").chmod(0o755)
        opened(copied)

    try:
        assert without_rights(work) == 0
    finally:
        opened_again(tmp_path)
