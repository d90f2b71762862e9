"""What is published is whole or not there; what killed processes left is removed, and nothing else; full disks."""

import errno
import fcntl
import json
import os
import resource
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from data.homology.clusters import excluded, open_clusters
from data.homology.split import open_split
from data.settings import IngestSettings
from data.store import folder as build_lock
from data.store.build import build_into
from data.store.folder import is_held, locked
from data.store.token_store import LOCK, TokenStore
from support.forked import NO_FILTER, RefusedFlushes, in_process
from support.inputs.seeded_source import SeededSource
from support.inputs.token_stores import store_from, store_of
from zymogen.files.durable import new_dir, replacing_file, workspace, write_atomic

WEEK_S = 7 * 24 * 3600


def killed_in(folder: Path) -> tuple[Path, Path]:
    """The folder and the lock that a process left which was killed while it published `folder`."""

    def work() -> None:
        with new_dir(folder) as building:
            (building / "half").mkdir()
            (building / "half" / "tokens").write_text("x")
            os.kill(os.getpid(), signal.SIGKILL)

    before = set(folder.parent.iterdir())
    assert in_process(work) == -signal.SIGKILL
    left, lock = sorted(set(folder.parent.iterdir()) - before)
    assert (left.is_dir(), lock.name) == (True, f"{left.name}.lock")
    return left, lock


def aged(left: Path, lock: Path, seconds: float) -> None:
    for path in [lock, *sorted(left.rglob("*"), reverse=True), left]:
        os.utime(path, (time.time() - seconds,) * 2)


def of_another_machine(lock: Path) -> None:
    lock.write_text(json.dumps({**json.loads(lock.read_text()), "machine": "another"}))


def publish_one(folder: Path) -> None:
    with new_dir(folder) as building:
        (building / "a").write_text("a")


@pytest.mark.parametrize("next_one", [publish_one, lambda path: replaced_with(path, "b")])
def test_what_a_killed_process_left_is_removed(next_one: Callable[[Path], None], tmp_path: Path) -> None:
    killed_in(tmp_path / "split-1")
    killed_in(tmp_path / "clusters-2")
    next_one(tmp_path / "split-3")
    assert [path.name for path in tmp_path.iterdir()] == ["split-3"]


def replaced_with(path: Path, text: str) -> None:
    with replacing_file(path) as temporary:
        temporary.write_text(text)


def test_what_is_not_ours_stays(tmp_path: Path) -> None:
    """Names like ours, without the word of a process of ours that it made them."""
    token = "0123456789abcdef"
    for name, content in {
        "empty": "",
        "text": "build in progress",
        "list": "[1]",
        "other": '{"format": "zymogen.workspace/1", "folder": ".split-2", "machine": "m", "locked": true}',
        "future": '{"format": "zymogen.workspace/2", "folder": ".future-0123456789abcdef", "locked": true}',
    }.items():
        (tmp_path / f".{name}-{token}").mkdir()
        (tmp_path / f".{name}-{token}" / "thesis.tex").write_text("")
        (tmp_path / f".{name}-{token}.lock").write_text(content)
        aged(tmp_path / f".{name}-{token}", tmp_path / f".{name}-{token}.lock", 2 * WEEK_S)
    (tmp_path / f".split-1-{token}").mkdir()  # without a lock
    (tmp_path / ".split-x1k2_3").mkdir()  # as earlier versions called theirs
    before = sorted(tmp_path.rglob("*"))
    publish_one(tmp_path / "split-1")
    shutil.rmtree(tmp_path / "split-1")
    assert sorted(tmp_path.rglob("*")) == before


def test_a_link_in_place_of_a_workspace_stays(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "a").touch()
    left, _ = killed_in(tmp_path / "split-1")
    shutil.rmtree(left)
    left.symlink_to(tmp_path / "mine")
    publish_one(tmp_path / "split-1")
    assert (tmp_path / "mine" / "a").exists()


def test_a_living_process_keeps_its_workspace(tmp_path: Path) -> None:
    with workspace(tmp_path / "split-1") as mine:
        (mine / "a").touch()
        aged(mine, mine.with_name(f"{mine.name}.lock"), 2 * WEEK_S)
        publish_one(tmp_path / "split-2")
        assert in_process(lambda: publish_one(tmp_path / "split-3")) == 0
        assert (mine / "a").exists()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["split-2", "split-3"]


def test_another_machine_has_a_week(tmp_path: Path) -> None:
    left, lock = killed_in(tmp_path / "split-1")
    of_another_machine(lock)
    aged(left, lock, WEEK_S - 60)
    publish_one(tmp_path / "split-1")
    assert (left / "half/tokens").exists()
    aged(left, lock, WEEK_S + 60)
    os.utime(left / "half/tokens")  # it still writes
    publish_one(tmp_path / "split-2")
    assert (left / "half/tokens").exists()
    aged(left, lock, WEEK_S + 60)
    publish_one(tmp_path / "split-3")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["split-1", "split-2", "split-3"]


def test_whoever_is_first_stays(tmp_path: Path) -> None:
    with new_dir(tmp_path / "split-1") as building:
        (building / "a").write_text("second")
        publish_one(tmp_path / "split-1")
    assert (tmp_path / "split-1/a").read_text() == "a"
    assert [path.name for path in tmp_path.iterdir()] == ["split-1"]


def test_what_fails_leaves_nothing(tmp_path: Path) -> None:
    def interrupted() -> None:
        with new_dir(tmp_path / "split-1") as building:
            (building / "a").touch()
            raise KeyboardInterrupt

    def full() -> None:
        with replacing_file(tmp_path / "old") as new:
            new.write_text("ne")
            raise OSError(errno.ENOSPC, "No space left on device")

    (tmp_path / "old").write_text("old")
    with pytest.raises(KeyboardInterrupt):
        interrupted()
    with pytest.raises(ValueError, match=r"disk is full.*No space left.*nothing of it was kept"):
        full()
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [("old", "old")]


# File systems without locks -----------------------------------------------------------------------


@pytest.fixture(params=[errno.ENOSYS, errno.ENOTSUP, errno.ENOLCK])
def no_locks(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    def flock(*_: object) -> None:
        raise OSError(request.param, os.strerror(request.param))

    monkeypatch.setattr(fcntl, "flock", flock)
    return os.strerror(request.param)


def test_without_locks_the_week_decides(no_locks: str, tmp_path: Path) -> None:
    left, lock = killed_in(tmp_path / "split-1")
    publish_one(tmp_path / "split-1")
    assert left.exists()
    aged(left, lock, WEEK_S + 60)
    publish_one(tmp_path / "split-2")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["split-1", "split-2"]


def test_a_lock_server_that_is_away_frees_no_workspace(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def away(*_: object) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    with workspace(tmp_path / "split-1") as mine:  # which has its lock
        monkeypatch.setattr(fcntl, "flock", away)
        publish_one(tmp_path / "split-2")
        assert mine.exists()
        monkeypatch.undo()


def test_a_folder_that_vanishes_is_not_waited_for(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Its working directory was removed: nothing can be made there, which looks like a build that failed."""
    monkeypatch.setattr(build_lock, "_POLL_S", 0.0)
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    with (
        pytest.raises(ValueError, match=r"^stores/a: no folder can be made there.*choose another data\.store_dir"),
        locked(Path("stores/a")),
    ):
        raise AssertionError


def test_a_store_is_not_built_without_locks(no_locks: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="two builders would write into one store unseen") as caught:
        build_into(tmp_path / "store", [SeededSource("s")], "count", IngestSettings())
    assert str(caught.value).startswith(f"{tmp_path / 'store'}: cannot be locked ({no_locks})")
    assert "name its folder in data.sources" in str(caught.value)
    assert not is_held(tmp_path / "store")


@pytest.fixture
def store(tmp_path: Path) -> TokenStore:
    return store_of(tmp_path, [(f"q{i}", "MKT" * (i + 1)) for i in range(60)])


def test_a_finished_store_is_used_without_locks(store: TokenStore, no_locks: str, tmp_path: Path) -> None:
    assert store_from(tmp_path / "proteins.fasta", tmp_path).folder == store.folder
    assert open_split(store, open_clusters(store, None), 0.2, None).num_training > 30
    assert [path.name for path in store.folder.glob(".*")] == [LOCK]


# Full disks ---------------------------------------------------------------------------------------


@contextmanager
def small_disk(folder: Path) -> Iterator[Path]:
    """A disk of 8 MB, or where none can be mounted, a folder in which no file may grow beyond 20 kB."""
    folder.mkdir()
    made = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", folder], capture_output=True)
    try:
        yield folder
    finally:
        if made.returncode == 0:
            subprocess.run(["umount", "--lazy", folder], check=True)  # a map may still be open


def fill(folder: Path) -> None:
    if not os.path.ismount(folder):
        resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))
        return
    with suppress(OSError), (folder / "others").open("wb", buffering=0) as file:
        for _ in range(4096):
            file.write(bytes(4096))


def test_no_room_for_what_is_derived(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with small_disk(tmp_path / "disk") as disk:
        store = store_of(disk, [(f"q{i}", "MKT" * (i % 50 + 1)) for i in range(9000)])
        table = tmp_path / "clusters.tsv"
        table.write_text("".join(f"c{i % 40}\tq{i}\n" for i in range(9000)))
        clusters = open_clusters(store, table)
        excluded_by = tmp_path / "exclude.tsv"
        excluded_by.write_text("".join(f"q{i}\n" for i in range(8000)))
        other = tmp_path / "other.tsv"
        other.write_text(table.read_text())
        before = sorted(os.listdir(store.folder))

        def work() -> None:
            fill(disk)
            for derive in (
                lambda: open_split(store, clusters, 0.9, None),
                lambda: open_clusters(store, other),
                lambda: excluded(store, excluded_by),
                lambda: clusters.members,
            ):
                with pytest.raises(ValueError, match="free space") as caught:
                    derive()
                assert "\n" not in str(caught.value)
                assert str(store.folder) in str(caught.value)
                assert sorted(os.listdir(store.folder)) == before

        assert in_process(work) == 0, capfd.readouterr().err
        (disk / "others").unlink(missing_ok=True)
        assert len(clusters.members.clusters) == 40


def test_a_file_whose_fsync_failed_is_never_flushed_again(tmp_path: Path) -> None:
    """The kernel refuses each in turn; the next write has a file of its own, and what was there stays until then."""
    path = tmp_path / "facts.json"

    def replace() -> None:
        with replacing_file(path) as new:
            new.write_text("new")

    def whole() -> None:
        write_atomic(path, "new")

    def work() -> None:
        flushes = RefusedFlushes()
        for write in (whole, replace):
            for fatal, left in ((1, "old"), (2, "new")):  # that of the file, and that of the folder after the rename
                path.write_text("old")
                (error,) = flushes.during(write, fatal)
                assert "Input/output error" in str(error)
                assert path.read_text() == left
                assert os.listdir(tmp_path) == [path.name]
                assert flushes.during(write, 0) == []
                assert path.read_text() == "new"
        assert len(flushes.held) == 4

    end = in_process(work)
    if end == NO_FILTER:
        pytest.skip("no right to filter system calls here")
    assert end == 0
