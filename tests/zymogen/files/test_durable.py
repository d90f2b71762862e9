"""What appears under its name is on disk before, to its last byte: flushes and renames in the order of their calls."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from data.settings import IngestSettings
from data.store import writer as store_writer
from data.store.build import build_into
from data.store.journal import JOURNAL, BuildJournal
from data.store.token_store import FACTS, StoreCounts
from support.inputs.seeded_source import SeededSource
from zymogen.files.durable import new_dir, replacing_file, write_atomic

Event = tuple[str, str]
"""`on disk`, or `named`, and the last part of a path."""


class Disk:
    """What a power cut would leave: how much of each file was flushed, and when names were given."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.events: list[Event] = []
        self.flushed: dict[str, int] = {}
        """Name of a file -> bytes when it was flushed last."""
        self.on_name: Callable[[str, Path], None] = lambda name, source: None
        fsync, replace, rename = os.fsync, os.replace, os.rename

        def flush(handle: int) -> None:
            name = Path(os.readlink(f"/proc/self/fd/{handle}")).name
            self.events.append(("on disk", name))
            self.flushed[name] = os.fstat(handle).st_size
            fsync(handle)

        def named(call: Callable[..., Any], source: Any, target: Any) -> None:
            self.events.append(("named", Path(target).name))
            self.on_name(Path(target).name, Path(source))
            call(source, target)

        monkeypatch.setattr(os, "fsync", flush)
        monkeypatch.setattr(os, "replace", lambda source, target: named(replace, source, target))
        monkeypatch.setattr(os, "rename", lambda source, target: named(rename, source, target))


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Disk:
    return Disk(monkeypatch)


def test_a_folder_appears_behind_its_files(disk: Disk, tmp_path: Path) -> None:
    with new_dir(tmp_path / "derived") as building:
        (building / "a.bin").write_bytes(bytes(1000))
        (building / "b.json").write_text("{}")
    assert sorted(disk.events[:2]) == [("on disk", "a.bin"), ("on disk", "b.json")]
    assert disk.events[2:] == [("on disk", building.name), ("named", "derived"), ("on disk", tmp_path.name)]
    assert (disk.flushed["a.bin"], disk.flushed["b.json"]) == (1000, 2)


@pytest.mark.parametrize("way", ["replaced", "write_whole"])
def test_a_file_appears_behind_its_bytes(disk: Disk, tmp_path: Path, way: str) -> None:
    if way == "replaced":
        with replacing_file(tmp_path / "a.txt") as new:
            new.write_text("12345")
    else:
        write_atomic(tmp_path / "a.txt", "12345")
    (_, temporary), *then = disk.events
    assert then == [("named", "a.txt"), ("on disk", tmp_path.name)]
    assert (disk.events[0][0], disk.flushed[temporary]) == ("on disk", 5)


def test_a_full_disk_is_reported_with_the_name_of_the_file(tmp_path: Path) -> None:
    (tmp_path / ".a.txt.zymogen-new").symlink_to("/dev/full")
    with pytest.raises(OSError, match="No space left on device") as caught:
        write_atomic(tmp_path / "a.txt", "12345")
    assert caught.value.filename == str(tmp_path / "a.txt")
    assert list(tmp_path.iterdir()) == []


def test_a_journal_appears_behind_what_it_says_is_there(
    disk: Disk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_writer, "COMMIT_S", 0.0)  # a commit after every block
    said: list[int] = []

    def compare(name: str, source: Path) -> None:
        if name == JOURNAL:
            content = json.loads(source.read_text())
            sizes = BuildJournal(key="", counts=StoreCounts(*content["counts"])).counts.file_sizes()
        elif name == FACTS:
            sizes = {file: facts["bytes"] for file, facts in json.loads(source.read_text())["files"].items()}
        else:
            return
        said.append(sizes["tokens.bin"])
        if sizes["tokens.bin"]:
            assert {file: disk.flushed[file] for file in sizes} == sizes

    disk.on_name = compare
    build_into(tmp_path / "store", [SeededSource("a", 1, 300)], "count", IngestSettings())
    assert len(set(said)) > 3
    assert said == sorted(said)
