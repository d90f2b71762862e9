"""The folder of a build: the user's files are unchanged, byte by byte, however builds into it end."""

import os
import random
import signal
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import Any

import pytest

from data.settings import IngestSettings
from data.sources.block import Source
from data.sources.fasta import FastaSource
from data.store import writer as store_writer
from data.store.build import build_into
from data.store.journal import JOURNAL, read_journal, write_failure
from data.store.token_store import FACTS, StoreCounts, TokenStore
from support.forked import in_process
from support.inputs.seeded_source import SeededSource, contents
from support.inputs.stream_builders import start_builder_of

QUARTER = IngestSettings(max_bad_fraction=0.25)
SOURCES = [SeededSource("a", 1, 90, 30, bad_every=9), SeededSource("b", 2, 60, 30), SeededSource("c", 3, 30, 30)]
SPOILED = [SOURCES[0], SeededSource("b", 7, 60, 30, bad_every=1), SOURCES[2]]
"""More bad records than a quarter."""
NAMES = (
    *("tokens.bin", "offsets.bin", "digests.bin", "headers.bin", "header_offsets.bin", "rejected.jsonl"),
    *("progress.json", "store.json", "build.lock", "failed.json", "run.json", "lengths.png", ".progress.json.new"),
    *("0000", "0001", "0002", "parts", "split-1", "members", "export", "checkpoints", "a.fasta", "notes.txt"),
)
RESERVED = {*StoreCounts().file_sizes(), "rejected.jsonl", FACTS, JOURNAL}
"""What a folder of ours holds, or will before it is finished."""


def quiet(*_: object) -> None:
    pass


def strewn(folder: Path, draw: random.Random, leave_out: set[str]) -> dict[Path, bytes]:
    """Files of a user's own, up to three folders deep, under names of ours and others; none of `leave_out` on top."""
    made = {}
    for _ in range(draw.randint(3, 12)):
        place = folder.joinpath(*(draw.choice(NAMES) for _ in range(draw.randint(1, 4))))
        if place.relative_to(folder).parts[0] in leave_out or place.exists():
            continue
        if any(parent.is_file() for parent in place.parents):
            continue
        place.parent.mkdir(parents=True, exist_ok=True)
        content = draw.choice([draw.randbytes(draw.randint(1, 300)), b'{"format": "mine/1", "files": {}}', b">p\nMK\n"])
        made[place] = content if place.name != "build.lock" or draw.random() < 0.5 else b""
        place.write_bytes(made[place])
    return made


def build(folder: Path, sources: list[Source], kill_at: int = 0) -> None:
    """Build in a copy of this process, which is killed where it touches the disk for the `kill_at`th time."""
    passed = 0

    def deadly(step: Callable[..., Any]) -> Callable[..., Any]:
        def taken(*arguments: Any, **named: Any) -> Any:
            nonlocal passed
            passed += 1
            if passed == kill_at:
                os.kill(os.getpid(), signal.SIGKILL)
            return step(*arguments, **named)

        return taken

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(store_writer, "COMMIT_S", 0.0)  # a commit after every block
        patch.setattr(store_writer.StoreWriter, "_write", deadly(store_writer.StoreWriter._write))
        for name in ("fsync", "replace", "unlink", "rmdir"):
            patch.setattr(os, name, deadly(getattr(os, name)))
        build_into(folder, sources, "count", QUARTER, progress=quiet)


@cache
def whole(folder: Path) -> dict[str, bytes]:
    """What an uninterrupted build gives."""
    return contents(build_into(folder / "store", SOURCES, "count", QUARTER).folder)


def random_builds(tmp_path: Path, once: Path, seed: int) -> int:
    """A few builds into one folder, to which the user adds files before and between them; how many."""
    draw = random.Random(seed)
    folder, theirs = tmp_path / f"{seed}", {}
    is_foreign = draw.random() < 0.4
    if is_foreign:
        theirs |= strewn(folder, draw, set())
    num_builds = draw.randint(1, 3)
    for _ in range(num_builds):
        sources = SPOILED if draw.random() < 0.3 else SOURCES
        killed = draw.random() < 0.7
        ended = in_process(partial(build, folder, sources, draw.randint(1, 130) if killed else 0))
        assert ended in (0, 1, -signal.SIGKILL)
        if theirs and is_foreign:
            assert ended == 1
            assert {path for path in folder.rglob("*") if path.is_file()} == set(theirs), "a build left something"
        # Of names that our folder has or will have, the user cannot have files of their own.
        is_ours = (folder / JOURNAL).exists() or (folder / FACTS).exists()
        if not is_foreign and is_ours:
            theirs |= strewn(folder, draw, RESERVED)
        for path, content in theirs.items():
            assert path.read_bytes() == content, path
    if is_foreign and theirs:
        return num_builds
    if not (folder / FACTS).exists():
        assert in_process(lambda: build(folder, SPOILED)) == 1
        for path, content in theirs.items():
            assert path.read_bytes() == content, path
        if theirs and not (folder / JOURNAL).exists():
            return num_builds + 1  # all of ours is gone, so what is left is theirs
    try:
        build_into(folder, SOURCES, "count", QUARTER, progress=quiet)
    except ValueError as error:  # of a spoilt build that was killed
        assert "other sources or settings" in str(error)  # noqa: PT017
        return num_builds + 2
    found = contents(folder, StoreCounts().file_sizes()) | contents(folder, ["rejected.jsonl", FACTS])
    assert found == whole(once)
    for path, content in theirs.items():
        assert path.read_bytes() == content, path
    return num_builds + 2


@pytest.mark.parametrize("num_builds", [20, pytest.param(200, marks=pytest.mark.prove)])
def test_no_byte_of_the_users_is_lost(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, num_builds: int
) -> None:
    once, done, seed = tmp_path_factory.mktemp("once"), 0, num_builds
    while done < num_builds:
        done += random_builds(tmp_path, once, seed)
        seed += 1


REFUSAL = r"{} is not empty and no token store: it holds {}; choose a folder that is empty or not there yet"


def fasta(path: Path) -> Source:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f">{path.stem}\nMKLV\n")
    return FastaSource(str(path), "refuse")


def test_sources_that_lie_where_the_store_shall_go(tmp_path: Path) -> None:
    sources = [fasta(tmp_path / "parts" / name) for name in ("p1.fasta", "shard0/p2.fasta", "0002/p3.fasta")]
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    with pytest.raises(ValueError, match=REFUSAL.format(tmp_path, "parts")):
        build_into(tmp_path, sources, "refuse", IngestSettings())
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


@pytest.mark.parametrize("name", [*NAMES, "clusters.tsv"])
def test_one_file_of_the_users_makes_it_theirs(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(b"")
    said = "is of another program" if name == FACTS else "is not empty and no token store"
    for sources in (SOURCES, SPOILED):
        with pytest.raises(ValueError, match=f"{said}.*; choose a"):
            build_into(tmp_path, sources, "count", QUARTER)
    assert contents(tmp_path) == {name: b""}
    assert len(list(tmp_path.iterdir())) == 1


@pytest.mark.parametrize("name", [FACTS, JOURNAL])
@pytest.mark.parametrize("content", [b'{"step": 3}', b"[]", b"", b"\0" * 40, b'{"format": "other/2", "key": "x"}'])
def test_json_of_another_program(tmp_path: Path, name: str, content: bytes) -> None:
    (tmp_path / "tokens.bin").write_bytes(b"mine")
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ValueError, match="choose a"):
        build_into(tmp_path, SOURCES, "count", QUARTER)
    with pytest.raises(ValueError, match=r"no finished token store|is of another program.*choose another folder$"):
        _ = TokenStore(tmp_path).facts
    assert contents(tmp_path) == {"tokens.bin": b"mine", name: content}


def test_what_nfs_keeps_of_a_removed_file_is_nobodys(tmp_path: Path) -> None:
    (tmp_path / ".nfs000000000012ab3400000001").touch()
    build_into(tmp_path, SOURCES, "count", QUARTER)
    assert TokenStore(tmp_path).num_records == 170


def test_files_that_came_into_a_folder_of_ours(tmp_path: Path) -> None:
    folder = tmp_path / "store"
    with pytest.raises(ValueError, match="broke after 30"):
        build_into(folder, [SOURCES[1], SeededSource("c", 3, 60, 30, breaks_at=30)], "count", QUARTER)
    theirs = dict.fromkeys(("notes.txt", "parts/p.fasta", "parts/0000/p.fasta", "split-1/split.json"), b"mine")
    for name, content in theirs.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)

    def found() -> dict[str, bytes]:
        return {name: (folder / name).read_bytes() for name in theirs}

    with pytest.raises(ValueError, match="record 40"):  # a failure that keeps nothing of ours
        build_into(folder, [SOURCES[1], SeededSource("c", 3, 60, 30, bad_every=40)], "count", IngestSettings())
    assert found() == theirs
    assert set(contents(folder)) == {"notes.txt"}
    with pytest.raises(ValueError, match=REFUSAL.format(folder, "notes.txt, parts, split-1")):
        build_into(folder, SOURCES, "count", QUARTER)
    assert found() == theirs


@pytest.mark.parametrize("points", [range(2, 6), pytest.param(range(1, 12), marks=pytest.mark.slow)])
def test_a_journal_comes_before_all_other_files(tmp_path: Path, points: range) -> None:
    seen = []
    for point in points:
        folder = tmp_path / f"{point}"
        assert in_process(partial(build, folder, SOURCES, point)) == -signal.SIGKILL
        seen.append(set(contents(folder)))
        assert JOURNAL in seen[-1] or not seen[-1] & RESERVED
        build_into(folder, SOURCES, "count", QUARTER)
    assert {".progress.json.zymogen-new"} in seen
    assert {JOURNAL} in seen


def test_what_a_failed_build_keeps_is_known_as_ours(tmp_path: Path) -> None:
    folder = tmp_path / "store"
    with pytest.raises(ValueError, match=r"rejected\.jsonl lists them"):
        build_into(folder, SPOILED, "count", QUARTER)
    assert sorted(contents(folder)) == [JOURNAL, "rejected.jsonl"]
    journal = read_journal(folder)
    assert journal is not None
    assert journal.num_read == 0
    build_into(folder, SOURCES, "count", QUARTER)  # of other files, as the user has corrected them
    assert TokenStore(folder).num_records == 170


def test_a_stream_refuses_it_before_the_run_starts(tmp_path: Path) -> None:
    folder = start_builder_of(SOURCES, "count", QUARTER, tmp_path / "first")
    theirs = tmp_path / "second" / folder.name
    theirs.mkdir(parents=True)
    (theirs / "failed.json").write_text("mine")
    (theirs / "tokens.bin").write_text("mine")
    with pytest.raises(ValueError, match=REFUSAL.format(theirs, "failed.json, tokens.bin")):
        start_builder_of(SOURCES, "count", QUARTER, tmp_path / "second")
    write_failure(theirs, "why")
    assert (theirs / "failed.json").read_text() == (theirs / "tokens.bin").read_text() == "mine"


def test_a_folder_that_may_be_written_to_but_not_listed(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    closed = tmp_path / "closed"
    closed.mkdir()
    (closed / "tokens.bin").write_bytes(b"mine")
    closed.chmod(0o333)
    assert in_process(lambda: build_into(Path("closed"), SOURCES, "count", QUARTER), tmp_path) == 1
    assert capfd.readouterr().err.endswith("\nValueError: closed: Permission denied; choose another folder\n")
    closed.chmod(0o755)
    assert contents(closed) == {"tokens.bin": b"mine"}
