"""Building a store: the same bytes whatever interrupts it and however many processes read."""

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from data.settings import IngestSettings
from data.sources.block import START, Source
from data.sources.fasta import FastaSource
from data.store import writer as store_writer
from data.store.build import build_into, open_or_build
from data.store.builder_process import MessageSender, messages, start
from data.store.folder import PARTS, is_held
from data.store.journal import read_journal
from data.store.prefetch import BuiltPart
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


def test_standard_input_is_neither_continued_nor_taken_for_a_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_writer, "COMMIT_S", 0.0)
    mended, log = tmp_path / "mended", tmp_path / "log"
    piped = SeededSource("-", breaks_at=300, mended=mended, log=log)
    with pytest.raises(ValueError, match="broke after 300"):
        build_into(tmp_path / "store", [piped], "count", IngestSettings())
    mended.touch()
    assert build_into(tmp_path / "store", [piped], "count", IngestSettings()).num_records == 500
    assert log.read_text().split() == ["0", "0"]
    with pytest.raises(ValueError, match="holds a store already, and standard input cannot be compared with it"):
        build_into(tmp_path / "store", [piped], "count", IngestSettings())


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


# Several at once ----------------------------------------------------------------------------------


@pytest.mark.slow
def test_in_parallel_it_gives_the_same_bytes(tmp_path: Path, whole: dict[str, bytes]) -> None:
    ingest = IngestSettings(max_bad_fraction=0.25, processes=3)
    told = []
    build_into(tmp_path / "store", SOURCES, "count", ingest, progress=lambda *counts: told.append(counts))
    assert contents(tmp_path / "store") == whole
    assert told[-1] == (573, TokenStore(tmp_path / "store").total_residues, 620 << 20, 620 << 20)


def at(folder: Path) -> tuple[int, int] | None:
    """Source and number of records where an unfinished build stands."""
    journal = read_journal(folder)
    return journal and (journal.source, journal.num_read)


def parallel_build(send: MessageSender, folder: Path, sources: list[Source]) -> None:
    build_into(folder, sources, "count", IngestSettings(max_bad_fraction=0.25, processes=3), progress=quiet)


@pytest.mark.slow
@pytest.mark.parametrize("processes", [pytest.param(1, marks=pytest.mark.prove), 3])
def test_killed_in_parallel_it_goes_on(tmp_path: Path, whole: dict[str, bytes], processes: int) -> None:
    folder, gate = tmp_path / "store", tmp_path / "gate"
    # The first source is read by the builder itself, the second waits halfway, the third is built while they wait.
    first = SeededSource("a", 1, 300, bad_every=9, gate=gate, gate_at=100)
    second = SeededSource("b", 2, 250, gate=gate, gate_at=200)
    sources = [first, second, SOURCES[2]]
    builder = start(parallel_build, folder, sources)
    part, ready = folder / PARTS / "0001", folder / PARTS / "0002" / "store.json"
    until(lambda: ready.exists() and [at(folder), at(part)] == [(0, 100), (0, 200)])
    builder.kill()
    builder.wait()
    assert builder.stdout is not None
    builder.stdout.close()
    until(lambda: not is_held(part))  # the processes that it had started end with it
    gate.touch()
    build_into(folder, sources, "count", IngestSettings(max_bad_fraction=0.25, processes=processes))
    assert contents(folder) == whole


def test_killed_while_a_part_is_appended(
    tmp_path: Path, whole: dict[str, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("data.store.prefetch._BLOCK_RECORDS", 16)
    monkeypatch.setattr("data.store.prefetch._BLOCK_RESIDUES", 3000)
    places = set()
    for point in (30, 55, 80, 300, 420):
        folder = tmp_path / str(point)
        build_into(folder / PARTS / "0000", SOURCES[:1], "count", QUARTER)
        build_into(folder / PARTS / "0001", SOURCES[1:2], "count", QUARTER)
        assert in_process(lambda: build_and_die(folder, point, monkeypatch)) == -signal.SIGKILL  # noqa: B023
        journal = read_journal(folder)
        places.add(journal and (journal.source, journal.of_part))
        build_into(folder, SOURCES, "count", QUARTER)
        assert contents(folder) == whole
    assert {(0, True), (1, True)} <= places


def test_a_part_reads_as_its_source_from_anywhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("data.store.prefetch._BLOCK_RECORDS", 16)
    monkeypatch.setattr("data.store.prefetch._BLOCK_RESIDUES", 2000)
    runs = SeededSource("r", num_records=120, bad_every=1, bad_until=45)  # more bad ones in a row than a block holds
    mixed = SeededSource("m", num_records=120, bad_every=3)
    for source in (runs, mixed):
        build_into(tmp_path / source.name, [source], "count", IngestSettings(max_bad_fraction=0.5))
        part, whole = BuiltPart(tmp_path / source.name, source), source.block(0, 120)
        blocks = list(part.blocks())
        assert len(blocks) > 8
        for number, end in enumerate([START, *(block.end for block in blocks)]):
            rest = list(part.blocks(end))
            assert [block.end for block in rest] == [block.end for block in blocks[number:]]
            for name in ("tokens", "lengths", "digests", "headers", "header_lengths"):
                joined = [getattr(block, name) for block in (*blocks[:number], *rest)]
                assert np.array_equal(np.concatenate(joined), getattr(whole, name))
            bad = [record for block in (*blocks[:number], *rest) for record in block.rejected]
            assert [record[:1] + record[2:] for record in bad] == [record[:1] + record[2:] for record in whole.rejected]
        for begin, block in zip([START, *(block.end for block in blocks)], blocks, strict=False):
            assert len(block.lengths) + len(block.rejected) == block.end.records - begin.records
            assert all(begin.records < record.record <= block.end.records for record in block.rejected)
        assert max(len(block.rejected) for block in blocks) <= 16
        assert max(len(block.tokens) for block in blocks) <= 2000
        assert sum(block.unknown_letters.get("'?'", 0) for block in blocks) == 2


@pytest.mark.slow
def test_an_error_in_another_process(tmp_path: Path) -> None:
    ingest, gate, log = IngestSettings(processes=2), tmp_path / "gate", tmp_path / "log"
    sources = [SeededSource("a", gate=gate, gate_at=100), SeededSource("b", bad_every=30, log=log)]
    with ThreadPoolExecutor(1) as pool:  # the first source continues only when the second has failed
        building = pool.submit(build_into, tmp_path / "store", sources, "count", ingest, progress=quiet)
        until(lambda: log.exists() and not (tmp_path / "store" / PARTS / "0001").exists())
        gate.touch()
        with pytest.raises(ValueError, match=r"^b: record 30 \('bad 29.'\) has no sequence; fill it\. To leave"):
            building.result()
    assert not (tmp_path / "store").exists()


@pytest.mark.slow
def test_a_process_that_dies(tmp_path: Path) -> None:
    sources = [SeededSource("a"), DyingSource("d")]
    with pytest.raises(
        ValueError, match=r"^d: the process that reads it was ended by signal 9; .* continues where it stopped"
    ):
        build_into(tmp_path / "store", sources, "count", IngestSettings(processes=2))
    assert not (tmp_path / "store" / "store.json").exists()


class DyingSource(SeededSource):
    """Ends its process."""

    def blocks(self, *_: Any) -> Iterator[Any]:
        os.kill(os.getpid(), signal.SIGKILL)
        yield


@pytest.mark.slow
@pytest.mark.timeout(60)
def test_an_interrupt_at_any_moment_ends_the_writer(tmp_path: Path) -> None:
    """Hundreds, each at another place: one that left a lock locked would leave the build waiting for it."""

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
            committed = writer.committed.num_read // len(block.lengths)
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
