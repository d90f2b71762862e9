"""Building a store: the same bytes whatever interrupts it."""

import os
import signal
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from data.settings import IngestSettings
from data.sources.block import Source
from data.sources.fasta import FastaSource
from data.sources.tables import TableSource
from data.store import writer as store_writer
from data.store.build import build_into, open_or_build
from data.store.builder_process import MessageSender, messages, start
from data.store.journal import read_journal
from data.store.token_store import TokenStore
from data.store.writer import StoreWriter
from support.forked import in_process
from support.inputs.seeded_source import SeededSource, contents, until

QUARTER = IngestSettings(max_bad_fraction=0.25)
SOURCES = [SeededSource("a", 1, 300, bad_every=9), SeededSource("b", 2, 250), SeededSource("c", 3, 70, bad_every=5)]


def quiet(*_: object) -> None:
    pass


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """What an uninterrupted build of `SOURCES` gives."""
    folder = tmp_path_factory.mktemp("whole") / "store"
    build_into(folder, SOURCES, "count", QUARTER)
    TokenStore(folder).verify()
    return contents(folder)


# Interruption -------------------------------------------------------------------------------------


def build_and_die(folder: Path, point: int, monkeypatch: pytest.MonkeyPatch) -> int:
    """Kill -9 this process at one of the points where it touches the disk; else, how many there are."""
    passed = 0

    def deadly(step: Callable[..., Any]) -> Callable[..., Any]:
        def taken(*arguments: Any, **named: Any) -> Any:
            nonlocal passed
            passed += 1
            if passed == point:
                os.kill(os.getpid(), signal.SIGKILL)
            return step(*arguments, **named)

        return taken

    with monkeypatch.context() as patch:
        patch.setattr(store_writer, "COMMIT_S", 0.0)  # a commit after every block
        patch.setattr(store_writer.StoreWriter, "_write", deadly(store_writer.StoreWriter._write))
        for name in ("fsync", "replace", "unlink"):
            patch.setattr(os, name, deadly(getattr(os, name)))
        build_into(folder, SOURCES, "count", QUARTER)
    return passed


@pytest.mark.slow
def test_killed_at_any_point_it_goes_on_to_the_same_bytes(
    tmp_path: Path, whole: dict[str, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    num_points = build_and_die(tmp_path / "alive", 0, monkeypatch)
    assert contents(tmp_path / "alive") == whole
    assert num_points > 120
    committed = set()
    # One commit from its beginning to its end, the steps to store.json, and some of all others.
    for point in sorted({*range(40, 56), *range(num_points - 12, num_points + 1), *range(1, num_points, 17)}):
        folder = tmp_path / str(point)
        assert in_process(lambda: build_and_die(folder, point, monkeypatch)) == -signal.SIGKILL  # noqa: B023
        journal = read_journal(folder)
        committed.add(journal and journal.num_read)
        assert not (folder / "store.json").exists() or TokenStore(folder).num_records == 573
        build_into(folder, SOURCES, "count", QUARTER)
        assert contents(folder) == whole, point
    assert {
        None,
        100,
        200,
        300,
        400,
        620,
    } <= committed  # before the first commit, inside and between sources, at the end


def test_killed_again_and_again(tmp_path: Path, whole: dict[str, bytes], monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "store"
    deaths = 0
    while in_process(lambda: build_and_die(folder, 45, monkeypatch)) == -signal.SIGKILL:
        deaths += 1
    assert deaths >= 3
    assert contents(folder) == whole


def test_goes_on_where_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_writer, "COMMIT_S", 0.0)
    mended, log = tmp_path / "mended", tmp_path / "log"
    source = SeededSource("s", num_records=1000, breaks_at=640, mended=mended, log=log)
    with pytest.raises(ValueError, match="s: the connection broke after 600 records"):
        build_into(tmp_path / "store", [source], "count", IngestSettings())
    assert not (tmp_path / "store" / "store.json").exists()
    mended.touch()
    store = build_into(tmp_path / "store", [source], "count", IngestSettings())
    assert log.read_text().split() == ["0", "600"]
    assert np.array_equal(store.tokens, source.block(0, 1000).tokens)


def test_a_source_that_breaks_at_once_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="broke after 0 records"):
        open_or_build([SeededSource("s", breaks_at=0)], tmp_path / "stores", "count", IngestSettings())
    assert list((tmp_path / "stores").iterdir()) == []


@pytest.mark.slow
def test_real_fasta_goes_on_at_its_offset(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_writer, "COMMIT_S", 0.0)
    path = tmp_path / "a.fasta"
    path.write_text("".join(f">r{n}\n{'MKV' * 5000}\n{'AC' * (n + 1)}\n" for n in range(1500)))
    sources = [FastaSource(str(path), "refuse")]
    once = build_into(tmp_path / "once", sources, "refuse", IngestSettings())

    def two_blocks() -> None:
        def stop(records: int, *_: object) -> None:
            if records > 1200:
                os.kill(os.getpid(), signal.SIGKILL)

        build_into(tmp_path / "twice", sources, "refuse", IngestSettings(), progress=stop)

    assert in_process(two_blocks) == -signal.SIGKILL
    journal = read_journal(tmp_path / "twice")
    assert journal is not None
    assert 0 < journal.position.records < 1500
    assert journal.position.offset > 0
    twice = build_into(tmp_path / "twice", sources, "refuse", IngestSettings())
    assert contents(twice.folder) == contents(once.folder)


def test_an_unfinished_store_that_was_damaged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_writer, "COMMIT_S", 0.0)
    source = SeededSource("s", breaks_at=300)

    def build(*sources: Source) -> None:
        build_into(tmp_path, sources, "count", IngestSettings())

    with pytest.raises(ValueError, match="broke"):
        build(source)
    with pytest.raises(ValueError, match="holds an unfinished store of other sources or settings; delete it"):
        build(SeededSource("other"))
    journal, tokens = (tmp_path / "progress.json").read_bytes(), (tmp_path / "tokens.bin").read_bytes()
    (tmp_path / "tokens.bin").write_bytes(tokens[:10])
    with pytest.raises(
        ValueError, match=r"tokens\.bin has 10 bytes, progress\.json says \d+: it was cut short; delete"
    ):
        build(source)
    (tmp_path / "tokens.bin").unlink()
    with pytest.raises(ValueError, match=r"tokens\.bin is missing; delete the folder"):
        build(source)
    (tmp_path / "progress.json").write_bytes(journal[:-9])
    with pytest.raises(ValueError, match=r"progress\.json is damaged, or of another version; delete the folder"):
        build(source)


def test_a_folder_of_another_store(tmp_path: Path) -> None:
    build_into(tmp_path, SOURCES[:1], "count", QUARTER)
    with pytest.raises(ValueError, match="holds a store of other sources or settings, those of a; choose another"):
        build_into(tmp_path, SOURCES[1:2], "count", QUARTER)
    with pytest.raises(ValueError, match="holds a store of other sources or settings"):
        build_into(tmp_path, SOURCES[:1], "refuse", QUARTER)


def test_a_source_that_changes_while_it_is_read(tmp_path: Path) -> None:
    path = tmp_path / "a.fasta"
    path.write_text(">a\nMKT\n")

    def change(*_: object) -> None:
        path.write_text(">a\nMKT\n>b\nMKV\n")

    sources = [FastaSource(str(path), "refuse")]
    with pytest.raises(ValueError, match=r"a\.fasta was changed while it was read; the same command reads it again"):
        build_into(tmp_path / "store", sources, "refuse", IngestSettings(), progress=change)
    assert not (tmp_path / "store").exists()
    assert build_into(tmp_path / "store", sources, "refuse", IngestSettings()).num_records == 2


@pytest.mark.parametrize("kind", [".parquet", ".jsonl", "datasets"])
def test_a_table_that_changes_while_it_is_read(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "rows" / ("rows.parquet" if kind == "datasets" else f"rows{kind}")
    path.parent.mkdir()

    def write(*_: object, sequences: tuple[str, ...] = ("MKT", "MKV")) -> None:
        new = tmp_path / "new"
        if kind == ".jsonl":
            new.write_text("".join(f'{{"sequence": "{sequence}"}}\n' for sequence in sequences))
        else:
            pq.write_table(pa.table({"sequence": list(sequences)}), new)
        os.replace(new, path)

    write(sequences=("MKT",))
    place, suffix = (f"datasets://{path.parent}", "") if kind == "datasets" else (str(path), kind)
    sources = [TableSource(place, suffix, "refuse")]
    with pytest.raises(ValueError, match=r" was changed while it was read; the same command reads it again$"):
        build_into(tmp_path / "store", sources, "refuse", IngestSettings(), progress=write)
    assert not (tmp_path / "store").exists()
    assert build_into(tmp_path / "store", sources, "refuse", IngestSettings(), progress=quiet).num_records == 2


# Several at once ----------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.timeout(60)
def test_an_interrupt_at_any_moment_ends_the_writer(tmp_path: Path) -> None:
    """Hundreds, each at another place: what the journal on disk has is there, and nothing more."""

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    def soon(seconds: float) -> None:
        time.sleep(seconds)
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGUSR1)

    before = signal.signal(signal.SIGUSR1, interrupt)
    block, moments = SeededSource("s").block(0, 5), np.random.default_rng(0).uniform(5e-4, 3e-3, 300).tolist()
    try:
        for number, seconds in enumerate(moments):
            folder = tmp_path / str(number)
            folder.mkdir()
            writer, killer = StoreWriter(folder, "key"), threading.Thread(target=soon, args=(seconds,))
            with suppress(KeyboardInterrupt):
                killer.start()
                while True:
                    if number % 2:
                        writer.append(block, "s")
                    writer.commit()
            writer.roll_back()
            killer.join()
            journal = read_journal(folder)
            assert journal is not None
            committed = journal.num_read // len(block.lengths)
            assert contents(folder)["tokens.bin"] == committed * block.tokens.tobytes()
    finally:
        signal.signal(signal.SIGUSR1, before)


def build_and_log(send: MessageSender, folder: Path, source: Source) -> None:
    send(began=True)
    build_into(folder, [source], "count", IngestSettings(), progress=quiet)


@pytest.mark.slow
def test_two_builders_at_once_give_one_store(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    gate, log = tmp_path / "gate", tmp_path / "log"
    source = SeededSource("s", gate=gate, log=log)
    builders = [start(build_and_log, tmp_path / "store", source) for _ in range(2)]
    heard = [messages(builder, "s") for builder in builders]
    for of_one in heard:
        assert next(of_one) == {"began": True}
    said = ""

    def one_waits() -> bool:
        nonlocal said
        said += capfd.readouterr().err
        return "another process builds this store; waiting for it" in said

    until(one_waits)
    gate.touch()
    for of_one in heard:
        assert list(of_one) == []
    assert log.read_text() == "0\n"
    assert TokenStore(tmp_path / "store").num_records == 500
    for builder in builders:
        assert builder.stdout is not None
        builder.stdout.close()
