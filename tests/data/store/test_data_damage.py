"""Damage of a store and of what is derived from it: one error that names the file and the remedy, and no crash."""

import re
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from data.corpus.prepare import prepare_corpora
from data.corpus.reader import CorpusReader
from data.order.plan import Bin
from data.settings import DataSettings, IngestSettings
from data.store.build import build_into
from data.store.token_store import TABLES, TokenStore, facts_text, new_hash
from support.forked import in_process
from support.inputs.raw_store import flip, write_store
from support.inputs.seeded_source import SeededSource

DAMAGED = (
    r"{}/offsets\.bin is damaged: record {} does not lie in tokens\.bin where it says; `python -m data verify .*delete"
)


@pytest.fixture
def store(tmp_path: Path) -> TokenStore:
    return build_into(tmp_path / "store", [SeededSource("s")], "count", IngestSettings())


def bin_of(samples: np.ndarray, lengths: np.ndarray) -> Bin:
    zeros = np.zeros(len(samples), np.int64)
    return Bin(samples, zeros, zeros, lengths)


@pytest.mark.parametrize("bit", [0, 5, 20, 40, 63])
def test_one_bit_of_the_offsets_ends_in_one_error(tmp_path: Path, bit: int) -> None:
    lengths = np.full(40, 50)
    folder = write_store(tmp_path, lengths)
    samples = np.arange(40)
    documents = bin_of(samples, lengths + 2)
    whole = CorpusReader([folder]).tokens(documents)
    flip(folder / "offsets.bin", 7, bit)

    def read() -> np.ndarray:  # of the lengths that were planned before
        return CorpusReader([folder]).tokens(documents)

    message = DAMAGED.format(re.escape(str(folder)), "[67]")  # the records on both sides of entry 7, which was 350
    with pytest.raises(ValueError, match=message):
        read()
    if not 300 < 350 ^ (1 << bit) < 400:
        with pytest.raises(ValueError, match=message):
            CorpusReader([folder]).num_residues(samples)
        with pytest.raises(ValueError, match=message):
            CorpusReader([folder]).residues(6 if bit > 8 else 7)
    flip(folder / "offsets.bin", 7, bit)
    assert np.array_equal(read(), whole)


def test_any_bit_of_the_offsets(tmp_path: Path) -> None:
    """Random bits, in a process of its own: whatever a bin says, no read leaves the map."""
    random = np.random.default_rng(0)
    lengths = random.integers(1, 90, 60)
    folder = write_store(tmp_path, lengths)
    samples = random.permutation(60)
    documents, slices = bin_of(samples, lengths[samples] + 2), bin_of(samples[:20], np.full(20, 1))
    content = (folder / "offsets.bin").read_bytes()

    def all_of_them() -> None:
        refused = 0
        for _ in range(120):
            (folder / "offsets.bin").write_bytes(content)
            flip(folder / "offsets.bin", int(random.integers(1, 60)), int(random.integers(64)))
            for wanted in (documents, slices):
                try:
                    assert len(CorpusReader([folder]).tokens(wanted)) == wanted.num_tokens
                except ValueError as error:
                    assert "offsets.bin is damaged: record" in str(error)  # noqa: PT017
                    refused += 1
        assert refused > 100

    assert in_process(all_of_them) == 0


def test_a_map_that_is_shorter_than_the_file_says_is_looked_at_again(tmp_path: Path) -> None:
    lengths = np.full(40, 50)
    whole, folder = write_store(tmp_path / "whole", lengths), tmp_path / "growing"
    folder.mkdir()
    (folder / "progress.json").write_text('{"format": "zymogen.store/2"}')
    content = (whole / "tokens.bin").read_bytes()
    (folder / "offsets.bin").write_bytes((whole / "offsets.bin").read_bytes())
    (folder / "tokens.bin").write_bytes(content[:700])
    reader = CorpusReader([folder])
    assert reader.num_residues(np.arange(14)).tolist() == [50] * 14

    def grow() -> None:
        time.sleep(0.3)
        with (folder / "tokens.bin").open("ab") as file:
            file.write(content[700:])

    grower = threading.Thread(target=grow)
    grower.start()
    assert np.array_equal(reader.residues(39), CorpusReader([whole]).residues(39))
    grower.join()
    (folder / "progress.json").unlink()  # and nobody writes any more
    (folder / "tokens.bin").write_bytes(content[:700])
    with pytest.raises(ValueError, match=DAMAGED.format(re.escape(str(folder)), 39)):
        CorpusReader([folder]).residues(39)


def test_offsets_that_do_not_rise(store: TokenStore) -> None:
    path = store.folder / "offsets.bin"
    flip(path, 250, 40)
    facts = {name: fact for name, fact in store.facts.items() if name != "hash"}
    facts["files"]["offsets.bin"]["hash"] = new_hash(path.read_bytes()).hexdigest()
    (store.folder / "store.json").write_text(facts_text(facts))
    with pytest.raises(ValueError, match=r"offsets\.bin does not rise from 0, at entry 25[01]; restore it from a copy"):
        TokenStore(store.folder).verify(*TABLES)


@pytest.mark.parametrize("name", ["../secret", "/etc/hostname", "more.bin"])
def test_a_store_that_lists_another_file_is_refused(store: TokenStore, name: str) -> None:
    facts = {name: fact for name, fact in store.facts.items() if name != "hash"}
    facts["files"][name] = {"bytes": 0, "hash": ""}
    (store.folder / "store.json").write_text(facts_text(facts))
    with pytest.raises(ValueError, match=f"store.json lists the file '{name}', which no token store has"):
        TokenStore(store.folder).facts  # noqa: B018


@pytest.mark.parametrize("name", ["offsets.bin", "digests.bin"])
def test_a_run_notices_one_bit(tmp_path: Path, name: str) -> None:
    proteins = (f">p{n}\nMK{'ACDEFGHIKL'[n % 10] * 9}{'ACDEFGHIKL'[n // 10]}\n" for n in range(100))
    (tmp_path / "a.fasta").write_text("".join(proteins))
    plain = DataSettings(
        sources=(str(tmp_path / "a.fasta"),), store_dir=str(tmp_path / "stores"), validation_fraction=0.2
    )
    (found,) = prepare_corpora(plain)
    flip(found.folder / name, 60, 1)
    with pytest.raises(ValueError, match=rf"{name} differs from what was written: .*delete the folder"):
        prepare_corpora(plain)
