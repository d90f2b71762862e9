"""Limits of a build: the budget for bad records, a full disk, bounded memory; and how far it is."""

import json
import os
import re
import resource
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import numpy as np
import pytest

from data.settings import IngestSettings
from data.sources.block import Source
from data.store import writer as store_writer
from data.store.build import build_into, open_or_build
from data.store.builder_process import MessageSender, messages, start
from data.store.journal import read_journal
from data.store.token_store import TokenStore
from support.forked import in_process
from support.inputs.seeded_source import BulkSource, SeededSource, contents
from zymogen.console.progress import BuildProgress

QUARTER = IngestSettings(max_bad_fraction=0.25)
SOURCES = [SeededSource("a", 1, 300, bad_every=9), SeededSource("b", 2, 250), SeededSource("c", 3, 70, bad_every=5)]


def quiet(*_: object) -> None:
    pass


# Bad records --------------------------------------------------------------------------------------


def test_within_the_budget_bad_records_are_left_out(tmp_path: Path) -> None:
    store = build_into(tmp_path, [SeededSource("s", bad_every=5)], "count", IngestSettings(max_bad_fraction=0.2))
    assert (store.num_records, store.rejected) == (400, {"no sequence": 100})
    with pytest.raises(ValueError, match=r"100 of 500 records are bad, a fraction of 0\.2, where .* allows 0\.19;"):
        build_into(tmp_path, [SeededSource("s", bad_every=5)], "count", IngestSettings(max_bad_fraction=0.19))
    store.verify()


def test_above_the_budget(tmp_path: Path) -> None:
    ingest = IngestSettings(max_bad_fraction=0.19)
    message = (
        r"100 of 500 records are bad, .* allows 0\.19; .*rejected\.jsonl lists them with reasons: correct them, or"
    )
    with pytest.raises(ValueError, match=message):
        build_into(tmp_path / "store", [SeededSource("s", bad_every=5)], "count", ingest)
    assert sorted(contents(tmp_path / "store")) == ["progress.json", "rejected.jsonl"]
    lines = (tmp_path / "store" / "rejected.jsonl").read_text().splitlines()
    assert [json.loads(line)["record"] for line in lines] == list(range(5, 501, 5))
    ingest = IngestSettings(max_bad_fraction=0.2)
    assert build_into(tmp_path / "store", [SeededSource("s", bad_every=5)], "count", ingest).num_records == 400


@pytest.mark.parametrize("block_records", [999, pytest.param(5000, marks=pytest.mark.slow)])
def test_the_budget_is_asked_on_the_way_and_no_block_changes_when(tmp_path: Path, block_records: int) -> None:
    # A tenth of the second source is bad: the first 10,000 of all hold 400, the first 20,000 hold 1,400.
    good = SeededSource("g", 1, 6000, block_records)
    bad = SeededSource("b", 2, 30_000, block_records, bad_every=10)
    ingest = IngestSettings(max_bad_fraction=0.05)
    with pytest.raises(ValueError, match=r"1400 of 20000 records are bad, a fraction of 0\.07"):
        build_into(tmp_path / "store", [good, bad], "count", ingest)
    assert sorted(contents(tmp_path / "store")) == ["progress.json", "rejected.jsonl"]


def test_no_budget_for_what_was_rejected_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_writer, "COMMIT_S", 0.0)
    mended, log = tmp_path / "mended", tmp_path / "log"
    source = SeededSource("s", bad_every=50, bad_until=200, breaks_at=300, mended=mended, log=log)
    with pytest.raises(ValueError, match="broke"):
        build_into(tmp_path / "store", [source], "count", QUARTER)
    with pytest.raises(ValueError, match=r"4 of 300 records are bad, .* allows 0; give the max_bad_fraction that"):
        build_into(tmp_path / "store", [source], "count", IngestSettings())
    mended.touch()
    assert build_into(tmp_path / "store", [source], "count", QUARTER).num_records == 496
    assert log.read_text().split() == ["0", "300"]


@pytest.mark.slow
def test_no_record_at_all(tmp_path: Path) -> None:
    for sources in ([], [SeededSource("e", num_records=0), SeededSource("f", num_records=0)]):
        with pytest.raises(ValueError, match=r"no record in (e, f|data\.sources)"):
            build_into(tmp_path / "store", sources, "count", IngestSettings())
        assert not (tmp_path / "store").exists()
    some = [SeededSource("e", num_records=0), SeededSource("s"), SeededSource("x", num_records=3, bad_every=1)]
    ingest = IngestSettings(max_bad_fraction=0.1)
    assert build_into(tmp_path / "store", some, "count", ingest).num_records == 500


# Full disk ----------------------------------------------------------------------------------------


@contextmanager
def small_disk(folder: Path) -> Iterator[Path]:
    folder.mkdir()
    made = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", folder], capture_output=True, text=True)
    if made.returncode != 0:
        pytest.skip(f"a small file system cannot be mounted here: {made.stderr.strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", folder], check=True)  # a map may still be open


def test_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_writer, "COMMIT_S", 0.0)
    source = SeededSource("s", num_records=9000)
    with small_disk(tmp_path / "disk") as disk:
        with pytest.raises(ValueError, match="the disk is full") as caught:
            open_or_build([source], disk, "count", IngestSettings())
        (folder,) = disk.iterdir()
        journal = read_journal(folder)
        assert journal is not None
        assert 1000 < journal.num_read < 9000
        assert str(caught.value) == (
            f"{folder}: the disk is full, or a quota or size limit reached (No space left on device); nothing was "
            "published; free space there or choose another folder (data.store_dir); the same command continues from "
            f"record {journal.num_read + 1}"
        )
        assert not (folder / "store.json").exists()
        subprocess.run(["mount", "-o", "remount,size=20m", disk], check=True)
        store = open_or_build([source], disk, "count", IngestSettings())
        assert np.array_equal(store.tokens, source.block(0, 9000).tokens)
        store.verify()


def test_a_limit_on_file_size(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    def limited() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (40_000, 40_000))
        build_into(tmp_path / "store", SOURCES, "count", QUARTER)

    assert in_process(limited) == 1
    said = capfd.readouterr().err
    assert "ValueError: " in said
    assert "the disk is full, or a quota or size limit reached (File too large); nothing was published" in said
    assert "the same command begins again" in said
    assert not (tmp_path / "store").exists()
    store = build_into(tmp_path / "store", SOURCES, "count", QUARTER)
    store.verify()
    assert store.num_records == 573


# Size and progress --------------------------------------------------------------------------------


def peaks_of_builds(send: MessageSender, folder: Path, sources: Sequence[Source]) -> None:
    peaks = []
    for number, source in enumerate(sources):
        build_into(folder / str(number), [source], "refuse", IngestSettings(), progress=quiet)
        # Not ru_maxrss, which begins with that of the process that started this one.
        (peak,) = (line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM"))
        peaks.append(int(peak.split()[1]))
    send(kilobytes=peaks)


@pytest.mark.slow
def test_memory_does_not_grow_with_the_store(tmp_path: Path) -> None:
    """Peaks of one process after a small build and after a large one; how much libraries take is the machine's.

    A small one comes before both: whatever its size, the second build of a process takes 24 MB more than the first.
    """
    few, many = 4, 72
    builder = start(peaks_of_builds, tmp_path, [BulkSource(num_blocks=number) for number in (few, few, many)])
    (message,) = messages(builder, "bulk")
    assert TokenStore(tmp_path / "2").total_residues == many << 22  # 302 MB
    _, small, large = message["kilobytes"]
    assert large - small < (many - few << 12) / 10  # a tenth of the residues that it has more
    assert builder.stdout is not None
    builder.stdout.close()


def test_progress_lines(capsys: pytest.CaptureFixture[str]) -> None:
    with BuildProgress(every_s=0.0) as progress:
        progress(10, 3000, 1000, 10_000)
        time.sleep(0.01)
        progress(20, 6000, 2000, 10_000)
        progress(30, 9000, 3000, None)
    first, second, third = capsys.readouterr().err.splitlines()
    assert first == "building the token store: 10.0%: 10 records, 3,000 residues"
    assert second.startswith("building the token store: 20.0%: 20 records, 6,000 residues, 0.")
    assert second.endswith(" M residues/s, 0:00 left")
    assert third.startswith("building the token store: 30 records, 9,000 residues, ")
    assert "left" not in third


def test_a_bar_on_a_terminal() -> None:
    ours, theirs = os.openpty()
    with open(theirs, "w") as terminal, BuildProgress(terminal) as progress:
        progress(10, 3000, 1000, 10_000)
        time.sleep(0.25)
        progress(1000, 300_000, 2500, 10_000)
        time.sleep(0.25)
        progress(2000, 600_000, 5000, 10_000)
    shown = ""
    with suppress(OSError):  # the other end is closed
        while True:
            shown += os.read(ours, 1 << 16).decode("utf-8", "replace")
    os.close(ours)
    assert "50%" in shown
    assert "2,000 records, 600,000 residues, 1." in shown
    assert re.search(r"0:\d\d:\d\d", shown)


def test_short_builds_say_nothing(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    build_into(tmp_path / "store", SOURCES[1:2], "count", QUARTER)
    assert capfd.readouterr() == ("", "")
    build_into(tmp_path / "other", SOURCES, "count", QUARTER)
    said = f"{tmp_path}/other: left out 47 records: 47 no sequence (rejected.jsonl)\n"
    assert capfd.readouterr() == ("", said)
