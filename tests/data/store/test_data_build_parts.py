"""What an interrupted build leaves: only the same build continues from it, and another build never changes it."""

import os
import shutil
import threading
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data.settings import IngestSettings, LetterPolicy, SourceContent
from data.sources.block import Source
from data.sources.fasta import FastaSource
from data.sources.tables import TableSource
from data.store import writer as store_writer
from data.store.build import build_into
from data.store.builder_process import MessageSender, spawn, start
from data.store.folder import PARTS, is_held
from data.store.journal import read_journal
from data.store.prefetch import plan_reading
from data.store.token_store import FACTS
from support.inputs.seeded_source import SeededSource, contents, until
from zymogen.processes.resources import Resources

MIB = 1 << 20

QUARTER = IngestSettings(max_bad_fraction=0.25)
SOURCES = [
    *(SeededSource("a", 1, 300, bad_every=9), SeededSource("b", 2, 250)),
    *(SeededSource("c", 3, 70, bad_every=5), SeededSource("d", 4, 200)),
]


def quiet(*_: object) -> None:
    pass


def parallel_build(send: MessageSender, folder: Path, sources: list[Source]) -> None:
    build_into(folder, sources, "count", replace(QUARTER, processes=4), progress=quiet)


@pytest.mark.parametrize(
    ("left", "built", "processes", "first_is_here", "readers", "workers"),
    [
        (range(3), (), 4, True, {0: "here", 1: "ahead", 2: "ahead"}, 2),
        (range(3), (), 4, False, {0: "ahead", 1: "ahead", 2: "ahead"}, 3),
        (range(3), (), 2, False, {0: "ahead", 1: "ahead", 2: "ahead"}, 2),
        (range(3), (), 1, False, {0: "here", 1: "here", 2: "here"}, 0),
        (range(1, 4), (1, 3), 2, True, {1: "built", 2: "ahead", 3: "built"}, 1),
        (range(1, 4), (2,), 2, True, {1: "here", 2: "built", 3: "ahead"}, 1),
        (range(1, 3), (1,), 1, True, {1: "built", 2: "here"}, 0),
        (range(3, 3), (), 2, True, {}, 0),
    ],
)
def test_who_reads_which_source(
    left: range,
    built: tuple[int, ...],
    processes: int,
    first_is_here: bool,
    readers: dict[int, str],
    workers: int,
) -> None:
    sizes: tuple[int | None, ...]
    for sizes in ((None,) * 4, (1 << 30,) * 4):
        found = plan_reading(left, built, sizes, processes, first_is_here=first_is_here)
        assert found == (readers, workers)


@settings(deadline=None, max_examples=300)
@given(
    st.lists(
        st.one_of(st.none(), st.sampled_from([0, 100, MIB - 1, MIB, 20 * MIB, 40 * MIB, 5000 * MIB])), max_size=200
    ),
    st.integers(1, 64),
    st.booleans(),
)
def test_processes_are_started_for_work_that_is_worth_it(
    sizes: list[int | None], processes: int, first_is_here: bool
) -> None:
    """Small files are read at once, by this process, whatever their number; a process has some 32 MB to read."""
    readers, workers = plan_reading(range(len(sizes)), (), sizes, processes, first_is_here=first_is_here)
    ahead = [sizes[number] for number, reader in readers.items() if reader == "ahead"]
    assert workers <= min(processes, len(ahead))
    assert all(size is None or size >= MIB for size in ahead)
    assert workers * 32 * MIB <= sum(32 * MIB if size is None else size for size in ahead)
    assert bool(ahead) == bool(workers)
    if processes == 1 or all(size is not None and size < MIB for size in sizes):
        assert workers == 0


class Started(Exception):
    """A process was started."""


@pytest.mark.parametrize("count", [2, 100])
def test_small_files_start_no_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    def no_process() -> None:
        raise Started

    monkeypatch.setattr("data.store.prefetch.spawn", no_process)
    monkeypatch.setattr("data.store.writer.os.fsync", lambda _: None)
    sources = []
    for number in range(count):
        (tmp_path / f"{number}.fasta").write_text(f">p{number}\nMKTAYIAKQR\n")
        sources.append(FastaSource(str(tmp_path / f"{number}.fasta"), "refuse"))
    for processes in (1, 4):
        folder = tmp_path / f"store{processes}"
        build_into(folder, sources, "refuse", IngestSettings(processes=processes), progress=quiet)
    assert contents(tmp_path / "store4") == contents(tmp_path / "store1")


@pytest.mark.slow
def test_a_few_processes_read_many_sources_in_turn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("zymogen.processes.resources.resources", lambda: Resources(8, 1, 1, ""))
    started: list[object] = []

    def counted() -> object:
        started.append(process := spawn())
        return process

    monkeypatch.setattr("data.store.prefetch.spawn", counted)
    sources = [SeededSource(f"s{number}", number, 40, pids=tmp_path / "pids") for number in range(12)]
    build_into(tmp_path / "store", sources, "count", IngestSettings(processes=2), progress=quiet)
    pids = Counter((tmp_path / "pids").read_text().split())
    assert len(started) <= 2
    assert (sum(pids.values()), len(pids)) == (12, len(started) + 1)  # and this process, which reads the first
    build_into(tmp_path / "once", sources, "count", IngestSettings())
    assert contents(tmp_path / "store") == contents(tmp_path / "once")


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a build of `SOURCES` that was killed before it had a record of the first.

    The parts of the second and the third were finished, 100 records of the fourth were committed.
    """
    work = tmp_path_factory.mktemp("killed")
    folder, gate = work / "store", work / "gate"
    slow = replace(SOURCES[0], gate=gate), *SOURCES[1:3], replace(SOURCES[3], gate=gate, gate_at=100)
    builder = start(parallel_build, folder, list(slow))
    parts = [folder / PARTS / f"{number:04d}" for number in range(1, 4)]

    def is_so_far() -> bool:
        journal = read_journal(parts[2])
        return all((part / FACTS).exists() for part in parts[:2]) and journal is not None and journal.num_read == 100

    until(is_so_far)
    builder.kill()
    builder.wait()
    assert builder.stdout is not None
    builder.stdout.close()
    until(lambda: not any(is_held(part) for part in parts))  # the processes that it had started end with it
    journal = read_journal(folder)
    assert journal is not None
    assert journal.num_read == 0
    return folder


@pytest.fixture
def folder(killed: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(killed, tmp_path / "store"))


def logged(log: Path) -> list[Source]:
    return [SOURCES[0], *(replace(source, log=log) for source in SOURCES[1:])]


# Parts --------------------------------------------------------------------------------------------


def goes_on(folder: Path, tmp_path: Path) -> None:
    """Building continues from the parts, to the same bytes, and leaves none of them."""
    build_into(folder, logged(tmp_path / "log"), "count", replace(QUARTER, processes=2), progress=quiet)
    assert (tmp_path / "log").read_text().split() == ["100"]
    assert contents(folder) == contents(build_into(tmp_path / "once", SOURCES, "count", QUARTER).folder)
    assert not (folder / PARTS).exists()


@pytest.mark.slow
def test_the_same_build_goes_on_from_its_parts(folder: Path, tmp_path: Path) -> None:
    goes_on(folder, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("processes", [1, 3])
def test_parts_of_other_sources_are_not_taken(folder: Path, tmp_path: Path, processes: int) -> None:
    others = [SOURCES[0], SeededSource("x", 7, 80), SeededSource("y", 8, 90), SeededSource("z", 9, 120)]
    store = build_into(folder, others, "count", replace(QUARTER, processes=processes), progress=quiet)
    assert store.num_records == 267 + 80 + 90 + 120
    assert contents(folder) == contents(build_into(tmp_path / "once", others, "count", QUARTER).folder)
    assert not (folder / PARTS).exists()


@pytest.mark.slow
@pytest.mark.parametrize(("letters", "content"), [("refuse", "protein"), ("count", "any")])
def test_parts_of_other_settings_are_not_taken(
    folder: Path, tmp_path: Path, letters: LetterPolicy, content: SourceContent
) -> None:
    ingest = replace(QUARTER, content=content)
    build_into(folder, logged(tmp_path / "log"), letters, ingest, progress=quiet)
    assert (tmp_path / "log").read_text().split() == ["0", "0", "0"]


@pytest.mark.slow
def test_a_failure_before_the_first_commit_keeps_the_parts(folder: Path, tmp_path: Path) -> None:
    before = {path: path.read_bytes() for path in (folder / PARTS).rglob("*") if path.is_file()}
    broken = [replace(SOURCES[0], breaks_at=0), *SOURCES[1:]]
    with pytest.raises(ValueError, match="a: the connection broke after 0 records"):
        build_into(folder, broken, "count", QUARTER, progress=quiet)

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        build_into(folder, SOURCES, "count", QUARTER, progress=interrupt)
    assert {path: path.read_bytes() for path in (folder / PARTS).rglob("*") if path.is_file()} == before
    goes_on(folder, tmp_path)


# The budget ---------------------------------------------------------------------------------------


@pytest.mark.slow
def test_parts_with_bad_records_stay_if_the_budget_is_left_out(folder: Path, tmp_path: Path) -> None:
    for processes in (1, 2):
        with pytest.raises(ValueError, match=r"14 of 420 records are bad, .* allows 0; give the max_bad_fraction that"):
            build_into(folder, SOURCES, "count", IngestSettings(processes=processes), progress=quiet)
    goes_on(folder, tmp_path)


def test_the_bad_records_of_a_part_count_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("data.store.prefetch._BLOCK_RECORDS", 16)
    monkeypatch.setattr(store_writer, "COMMIT_S", 0.0)  # a commit after every block
    source, told = SOURCES[2], []

    def interrupt(*counts: object) -> None:
        told.append(counts)
        if len(told) == 3:
            raise KeyboardInterrupt

    build_into(tmp_path / PARTS / "0000", [source], "count", QUARTER)
    with pytest.raises(KeyboardInterrupt):
        build_into(tmp_path, [source], "count", QUARTER, progress=interrupt)
    journal = read_journal(tmp_path)
    assert journal is not None
    assert journal.of_part
    assert 0 < journal.rejected["no sequence"] < 14
    with pytest.raises(ValueError, match=r"14 of 70 records are bad"):
        build_into(tmp_path, [source], "count", IngestSettings())
    assert build_into(tmp_path, [source], "count", QUARTER).num_records == 56


# Standard input and pipes -------------------------------------------------------------------------


def test_standard_input_does_not_replace_an_unfinished_build(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_writer, "COMMIT_S", 0.0)
    with pytest.raises(ValueError, match="broke after 300"):
        build_into(tmp_path, [SeededSource("s", breaks_at=300)], "count", IngestSettings())
    before = contents(tmp_path)
    with pytest.raises(ValueError, match="holds an unfinished store of other sources or settings; delete it, or"):
        build_into(tmp_path, [SeededSource("-")], "count", IngestSettings())
    assert contents(tmp_path) == before
    assert build_into(tmp_path, [SeededSource("s")], "count", IngestSettings()).num_records == 500


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


@pytest.mark.parametrize("kind", ["fasta", "csv"])
def test_a_pipe_is_read_once(tmp_path: Path, kind: str) -> None:
    pipe = tmp_path / f"pipe.{kind}"
    os.mkfifo(pipe)
    os.utime(pipe, ns=(0, 0))  # what is written into it changes its time
    text = ">a\nMKT\n>b\nMKV\n" if kind == "fasta" else "id,sequence\na,MKT\nb,MKV\n"
    source: Source = FastaSource(str(pipe), "refuse")
    if kind == "csv":
        source = TableSource(f"{pipe}?sequence=sequence", ".csv", "refuse")
    writer = threading.Thread(target=pipe.write_text, args=(text,), daemon=True)
    writer.start()
    store = build_into(tmp_path / "store", [source], "refuse", IngestSettings(), progress=quiet)
    writer.join()
    assert os.stat(pipe).st_mtime_ns > 0
    assert store.num_records == 2
