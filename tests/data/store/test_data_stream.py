"""Reading a store that another process is still writing."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from data.corpus.reader import CorpusReader
from data.settings import CorpusSettings, IngestSettings
from data.store import growing as stream
from data.store.build import open_or_build
from data.store.folder import is_held, locked
from data.store.growing import GrowingStore, start_builder
from data.store.journal import failure, read_journal
from data.store.token_store import TABLES, TokenStore
from support.inputs.seeded_source import SeededSource, contents, until
from support.inputs.stream_builders import is_finished, start_builder_of
from support.places import ROOT, TESTS

INGEST = IngestSettings()


@pytest.fixture(autouse=True)
def _no_builder_stays() -> Iterator[None]:
    _end_builders()  # of tests of other files that ran in this process
    yield
    _end_builders()


def _end_builders() -> None:
    while stream._builders:
        builder = stream._builders.pop()
        builder.kill()
        builder.wait()


@pytest.mark.slow
def test_what_was_committed_can_be_read_while_the_source_is_slow(tmp_path: Path) -> None:
    source = SeededSource("s", gate=tmp_path / "gate", gate_at=300)
    whole = source.block(0, 500)
    store = GrowingStore(start_builder_of([source], "count", INGEST, tmp_path))
    assert store.wait(250) == 250
    assert not is_finished(store.folder)
    assert len(store.offsets) == 301
    assert store.wait(300) == 300
    offset = int(store.offsets[300])
    assert np.array_equal(store.tokens, whole.tokens[:offset])
    assert np.array_equal(store.num_residues(np.arange(300)), whole.lengths[:300])
    assert np.array_equal(store.digests, whole.digests[:300])
    assert store.header(299).startswith("s|299 protein")
    with pytest.raises(IndexError):
        store.header(300)
    for unknown in ("num_records", "fingerprint", "facts"):
        with pytest.raises(ValueError, match="holds no finished token store"):
            getattr(store, unknown)
    reader = GrowingStore(store.folder)
    assert (reader.wait(300), is_finished(reader.folder)) == (300, False)
    (tmp_path / "gate").touch()
    assert store.wait(301) == 301
    assert store.wait(1 << 40) == 500
    assert is_finished(store.folder)
    assert np.array_equal(store.tokens, whole.tokens)
    assert store.num_records == 500
    store.verify()
    assert reader.wait(1 << 40) == 500
    assert np.array_equal(reader.tokens, whole.tokens)


@pytest.mark.slow
def test_any_number_of_processes_read(tmp_path: Path) -> None:
    source = SeededSource("s", gate=tmp_path / "gate", gate_at=300)
    folder = start_builder_of([source], "count", INGEST, tmp_path / "stores")
    program = f"""
from pathlib import Path
from data.store.growing import GrowingStore
store = GrowingStore(Path({str(folder)!r}))
print(store.wait(300), int(store.tokens.sum()), flush=True)
print(store.wait(1000), int(store.tokens.sum()), store.fingerprint, flush=True)
"""
    readers = [
        subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True, cwd=ROOT) for _ in range(3)
    ]
    first, whole = source.block(0, 300).tokens, source.block(0, 500).tokens
    for reader in readers:
        assert reader.stdout is not None
        assert reader.stdout.readline() == f"300 {first.sum()}\n"
    (tmp_path / "gate").touch()
    for reader in readers:
        said, _ = reader.communicate(timeout=60)
        assert said == f"500 {whole.sum()} {TokenStore(folder).fingerprint}\n"


@pytest.mark.slow
def test_a_killed_builder_is_noticed_and_another_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream, "_ALIVE_S", 0.3)
    source = SeededSource("s", gate=tmp_path / "gate", gate_at=300, log=tmp_path / "log")
    folder = start_builder_of([source], "count", INGEST, tmp_path / "stores")
    store = GrowingStore(folder)
    assert store.wait(300) == 300
    stream._builders[0].kill()
    assert store.wait(300) == 300  # what is there stays readable
    with pytest.raises(RuntimeError, match="its builder ended before the store was finished, after 300 records; start"):
        store.wait(301)
    assert start_builder_of([source], "count", INGEST, tmp_path / "stores") == folder
    (tmp_path / "gate").touch()
    assert store.wait(501) == 500
    assert (tmp_path / "log").read_text().split() == ["0", "300"]
    once = open_or_build([source], tmp_path / "once", "count", INGEST)
    assert contents(folder) == contents(once.folder)


def test_nobody_builds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream, "_ALIVE_S", 0.1)
    with pytest.raises(RuntimeError, match="its builder ended before the store was finished, after 0 records"):
        GrowingStore(tmp_path).wait(1)


@pytest.mark.slow
def test_the_failure_of_a_source_arrives(tmp_path: Path) -> None:
    mended = tmp_path / "mended"
    source = SeededSource("s", breaks_at=250, mended=mended, gate=tmp_path / "gate", gate_at=200)
    folder = start_builder_of([source], "count", INGEST, tmp_path / "stores")
    store = GrowingStore(folder)
    assert store.wait(200) == 200
    (tmp_path / "gate").touch()
    for _ in range(2):  # it stays
        with pytest.raises(ValueError, match=r"^s: the connection broke after 200 records$"):
            store.wait(201)
    mended.touch()
    assert start_builder_of([source], "count", INGEST, tmp_path / "stores") == folder
    assert store.wait(501) == 500
    assert failure(folder) is None


def test_a_bad_record_arrives_as_it_does_without_streaming(tmp_path: Path) -> None:
    folder = start_builder_of([SeededSource("s", bad_every=450)], "count", INGEST, tmp_path / "stores")
    with pytest.raises(ValueError, match=r"^s: record 450 \('bad 449.'\) has no sequence; fill it\. To leave"):
        GrowingStore(folder).wait(1000)
    assert "tokens.bin" in contents(folder)  # what was read so far may be in use
    with pytest.raises(ValueError, match=r"^s: record 450 "):
        open_or_build([SeededSource("s", bad_every=450)], tmp_path / "stores", "count", INGEST)
    assert not folder.exists()


@pytest.mark.slow
def test_a_second_builder_takes_over(tmp_path: Path) -> None:
    source = SeededSource("s", gate=tmp_path / "gate", gate_at=300, log=tmp_path / "log")
    folder = start_builder_of([source], "count", INGEST, tmp_path / "stores")
    assert start_builder_of([source], "count", INGEST, tmp_path / "stores") == folder
    store = GrowingStore(folder)
    assert store.wait(300) == 300
    stream._builders[0].kill()
    until(lambda: len((tmp_path / "log").read_text().split()) == 2)
    (tmp_path / "gate").touch()
    assert store.wait(1000) == 500
    assert (tmp_path / "log").read_text().split() == ["0", "300"]


@pytest.mark.slow
def test_a_second_builder_ends_when_the_first_has_done_it(tmp_path: Path) -> None:
    source = SeededSource("s", gate=tmp_path / "gate", log=tmp_path / "log")
    for _ in range(2):
        folder = start_builder_of([source], "count", INGEST, tmp_path / "stores")
    (tmp_path / "gate").touch()
    assert GrowingStore(folder).wait(1000) == 500
    assert [builder.wait(60) for builder in stream._builders] == [0, 0]
    assert (tmp_path / "log").read_text().split() == ["0"]


@pytest.mark.slow
def test_a_builder_ends_with_the_process_that_started_it(tmp_path: Path) -> None:
    program = f"""
import os, signal
from pathlib import Path
from support.inputs.seeded_source import SeededSource
from data.settings import IngestSettings
from data.store.growing import GrowingStore
from support.inputs.stream_builders import start_builder_of
source = SeededSource("s", gate=Path({str(tmp_path / "gate")!r}), gate_at=300)
folder = start_builder_of([source], "count", IngestSettings(), Path({str(tmp_path)!r}))
print(folder, GrowingStore(folder).wait(300), flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""
    search = f"{ROOT}:{TESTS}"
    trainer = subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": search}
    )
    assert trainer.stdout is not None
    name, count = trainer.stdout.readline().split()
    assert count == "300"
    assert trainer.wait(60) == -signal.SIGKILL
    trainer.stdout.close()
    until(lambda: not is_held(Path(name)))  # though its source still stalls
    journal = read_journal(Path(name))
    assert journal is not None
    assert journal.num_read == 300


@pytest.mark.slow
def test_a_corpus_of_files(tmp_path: Path) -> None:
    for n in range(2):
        (tmp_path / f"{n}.fasta").write_text("".join(f">p{n}{i}\n{'MKT' * (i + 1)}\n" for i in range(30)))
    corpus = CorpusSettings(sources=(str(tmp_path / "*.fasta"),), streaming=True)
    folder = start_builder(corpus, "refuse", INGEST, tmp_path / "stores")
    store = GrowingStore(folder)
    assert store.wait(1000) == 60
    assert store.header(59) == "p129"
    assert start_builder(corpus, "refuse", INGEST, tmp_path / "stores") == folder  # finished: nothing to do
    again = GrowingStore(folder)
    assert is_finished(again.folder)
    assert (again.wait(7), again.num_records, len(again.offsets)) == (7, 60, 61)
    named = CorpusSettings(sources=(str(folder),), streaming=True)
    assert start_builder(named, "refuse", INGEST, tmp_path / "stores") == folder


def test_sources_that_cannot_be_found_are_an_error_at_once(tmp_path: Path) -> None:
    for source, message in (("none.fasta", "No such file"), ("*.fasta", "no file matches this pattern")):
        corpus = CorpusSettings(sources=(str(tmp_path / source),), streaming=True)
        with pytest.raises(ValueError, match=message):
            start_builder(corpus, "refuse", INGEST, tmp_path / "stores")


def test_an_error_of_ours_arrives_too(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    folder = start_builder_of([SeededSource("s", block_records=0)], "count", INGEST, tmp_path / "stores")
    with pytest.raises(ValueError, match=r"the builder of .* failed, ValueError|range\(\) arg 3 must not be zero"):
        GrowingStore(folder).wait(1)
    capfd.readouterr()


def test_askers_for_the_lock_do_not_keep_a_builder_out(tmp_path: Path) -> None:
    assert not is_held(tmp_path / "none")
    with locked(tmp_path):
        assert is_held(tmp_path)
    assert not is_held(tmp_path)
    with locked(tmp_path, lambda: pytest.fail("there is nothing to wait for")):
        pass


def test_a_damaged_journal_is_named(tmp_path: Path) -> None:
    (tmp_path / "progress.json").write_text(json.dumps({"format": "zymogen.store/9"}))
    with pytest.raises(ValueError, match=r"progress\.json is damaged, or of another version; delete the folder"):
        GrowingStore(tmp_path).wait(1)


def test_a_store_that_another_machine_just_finished_may_look_short(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_or_build([SeededSource("s")], tmp_path, "count", INGEST)
    path, size = store.folder / "tokens.bin", store.facts["files"]["tokens.bin"]["bytes"]
    content = path.read_bytes()

    def grow() -> None:
        with path.open("ab") as file:
            file.write(content[-100:])

    def seen_later() -> threading.Timer:
        path.write_bytes(content[:-100])
        timer = threading.Timer(0.3, grow)
        timer.start()
        return timer

    for read in (
        lambda: GrowingStore(store.folder).wait(1 << 40),
        lambda: CorpusReader([store.folder]).residues(499),
        lambda: GrowingStore(store.folder).verify(*TABLES),
    ):
        timer = seen_later()
        read()
        timer.join()
    path.write_bytes(content[:-100])  # and one that is cut
    began = time.monotonic()
    cut = rf"tokens\.bin has {size - 100} bytes, store\.json says {size}: it was cut short; restore it from a copy"
    with pytest.raises(ValueError, match=cut):
        _ = TokenStore(store.folder).facts  # at once
    monkeypatch.setattr(GrowingStore, "_patience_s", 0.1)
    monkeypatch.setattr("data.corpus.reader.PATIENCE_S", 0.1)
    with pytest.raises(ValueError, match=cut):
        GrowingStore(store.folder).wait(1)
    with pytest.raises(ValueError, match=cut):
        CorpusReader([store.folder]).residues(499)
    assert time.monotonic() - began < 10
