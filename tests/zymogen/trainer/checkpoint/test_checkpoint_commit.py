"""The commit against real kills and a disk that is really full."""

import errno
import functools
import os
import resource
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest

from support.checkpoint_run import assert_same, build, everything, flip, mount_small_disk, restore, save, train
from support.forked import forked, status_of
from zymogen.processes.errors import CheckpointError
from zymogen.trainer.checkpoint.load import find, newest_valid, verify
from zymogen.trainer.checkpoint.manifest import CheckpointManifest
from zymogen.trainer.checkpoint.retention import retain, sweep
from zymogen.trainer.engine.named_state import TorchState


def test_order_of_the_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every byte and name is durable before the rename that publishes them."""
    events: list[tuple[str, str]] = []
    fsync, rename = os.fsync, os.rename

    def record_fsync(handle: int) -> None:
        target = os.readlink(f"/proc/self/fd/{handle}")
        events.append(("fsync", f"{target}:{os.fstat(handle).st_size if target[-1:] else 0}"))
        fsync(handle)

    def record_rename(source: Path, target: Path) -> None:
        events.append(("rename", str(target)))
        rename(source, target)

    monkeypatch.setattr(os, "fsync", record_fsync)
    monkeypatch.setattr(os, "rename", record_rename)
    model, optimizer = build()
    train(model, optimizer, 0, 1)
    path = save(tmp_path, TorchState(model, optimizer), 1)
    publish = events.index(("rename", str(path)))
    manifest_named = next(i for i, (what, at) in enumerate(events) if at.endswith("manifest.json"))
    before = [at.rpartition(":")[0].partition("-a1-")[2][9:] for _, at in events[:manifest_named]]
    sizes = {at.rpartition(":")[0].partition("-a1-")[2][9:]: at.rpartition(":")[2] for _, at in events}
    for entry in verify(path).manifest.files:
        assert entry.path in before, f"{entry.path} was not durable before the manifest"
        assert sizes[entry.path] == str(entry.size), "fsynced before its last byte"
    assert {"model", "optimizer", "manifest.json.tmp"} <= set(before)
    between = [at for what, at in events[manifest_named + 1 : publish] if what == "fsync"]
    assert [".tmp-step-000000001-a1-" in at for at in between] == [True]
    assert [(what, at.rpartition(":")[0]) for what, at in events[publish + 1 :]] == [("fsync", str(tmp_path))]


def commit_on(folder: Path, attempt: int, last: int | None = None, keep: int = 2) -> None:
    """Continue from the newest checkpoint and commit every step, as a run does."""
    sweep(folder)
    found = newest_valid(folder, writer=True)
    model, optimizer = build()
    state = TorchState(model, optimizer)
    step = restore(found, state).step if found else 0
    parent = found.manifest.self_sha256 if found else None
    while last is None or step < last:
        train(model, optimizer, step, step + 1)
        step += 1
        path = save(folder, state, step, attempt=attempt, parent=parent)
        parent = verify(path).manifest.self_sha256
        retain(folder, keep=keep, committed=path)
        note_returned(folder, step)


def note_returned(folder: Path, step: int) -> None:
    """A run notes each step whose commit returned, beside its checkpoints."""
    folder.with_suffix(".new").write_text(str(step))
    folder.with_suffix(".new").replace(folder.with_suffix(".returned"))


def last_returned(folder: Path) -> int:
    """The last step noted before the kill, 0 for none."""
    noted = folder.with_suffix(".returned")
    return int(noted.read_text()) if noted.exists() else 0


def assert_sound(folder: Path, attempt: int) -> int:
    """What must hold after any kill; returns the newest step, 0 for none."""
    returned = last_returned(folder)
    for path in find(folder):
        verify(path)
    found = newest_valid(folder, writer=True)
    assert not (folder / ".quarantine").exists()
    sweep(folder)
    left = {p.name for p in folder.iterdir()}
    assert left == {p.name for p in find(folder)}
    assert len(left) <= 3
    if found is None:
        assert returned == 0
        return 0
    assert found.rejected == ()
    assert found.manifest.attempt <= attempt
    assert found.manifest.step in (returned, returned + 1)
    return found.manifest.step


@pytest.mark.slow
def test_killed_at_every_change_of_the_disk(tmp_path: Path) -> None:
    """A commit and the deletion of the one before, killed before the n-th system call, for every n."""
    calls = ("mkdir", "fsync", "rename", "unlink", "rmdir")

    def work(folder: Path, fatal: int) -> None:
        count = 0
        for name in calls:
            real = getattr(os, name)

            def counted(*args: Any, real: Any = real, **kwargs: Any) -> Any:
                nonlocal count
                count += 1
                if count == fatal:
                    os.kill(os.getpid(), signal.SIGKILL)
                return real(*args, **kwargs)

            setattr(os, name, counted)
        commit_on(folder, 1, last=2, keep=1)

    base = tmp_path / "base"
    commit_on(base, 1, last=1)
    fatal, ends, before, after = 0, [], 0, 0
    while not ends or ends[-1] != 0:
        fatal += 1
        folder = tmp_path / f"run{fatal}"
        shutil.copytree(base, folder)
        note_returned(folder, 1)
        ends.append(status_of(forked(functools.partial(work, folder, fatal))))
        newest = assert_sound(folder, 1)
        before, after = before + (newest == 1), after + (newest == 2)
        assert newest == 2 or ends[-1] == -signal.SIGKILL
    assert set(ends[:-1]) == {-signal.SIGKILL}
    assert (before, after) == (14, 13), "calls before and after the rename that publishes"
    commit_on(tmp_path / "run7", 2, last=3)
    assert [p.name for p in find(tmp_path / "run7")] == ["step-000000003", "step-000000002"]


def limit_file_size(folder: Path) -> None:
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))


DISKS = {
    "file size limit": (limit_file_size, "File too large"),
    "full disk": (mount_small_disk, "No space left on device"),
}


@pytest.mark.parametrize("disk", DISKS)
def test_a_full_disk_leaves_nothing(tmp_path: Path, disk: str) -> None:
    limit, reason = DISKS[disk]

    def work() -> None:
        limit(tmp_path)
        model, optimizer = build()
        train(model, optimizer, 0, 1)
        before = everything(model, optimizer)
        with pytest.raises(CheckpointError, match="was not saved") as caught:
            save(tmp_path, TorchState(model, optimizer), 1)
        assert caught.value.reason == f"step 1 was not saved: {reason}"
        assert str(tmp_path / "step-000000001") in str(caught.value)
        assert "free space" in caught.value.remedy
        assert os.listdir(tmp_path) == []
        assert_same(everything(model, optimizer), before)

    end = status_of(forked(work))
    if end == 77:
        pytest.skip("no right to mount a tmpfs here")
    assert end == 0


@pytest.mark.parametrize(("call", "calls"), [("fsync", 10), ("rename", 2)])
def test_every_failing_call_leaves_nothing_published(
    two: Path, call: str, calls: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, optimizer = build()
    train(model, optimizer, 0, 1)
    state, real = TorchState(model, optimizer), getattr(os, call)
    count = 0

    def fail_at_zero(*args: Any) -> None:
        nonlocal count
        count -= 1
        if count == -1:
            raise OSError(errno.EIO, "Input/output error")
        real(*args)

    monkeypatch.setattr(os, call, fail_at_zero)
    for before in range(calls):
        count = before
        with pytest.raises(CheckpointError, match="Input/output error"):
            save(two, state, 5)
        assert sorted(p.name for p in two.iterdir()) == ["step-000000003", "step-000000004"]
    count = calls
    verify(save(two, state, 5))


def test_same_bytes_again_keep_what_is_there(two: Path) -> None:
    model, optimizer = build()
    train(model, optimizer, 0, 5)
    first = verify(save(two, TorchState(model, optimizer), 5))
    assert save(two, TorchState(model, optimizer), 5, attempt=2) == first.path
    assert verify(first.path) == first
    assert len(list(two.iterdir())) == 3


def test_another_result_supersedes_and_keeps_the_old(two: Path) -> None:
    old = verify(two / "step-000000004")
    model, optimizer = build(seed=9)
    train(model, optimizer, 0, 4)
    new = verify(save(two, TorchState(model, optimizer), 4, attempt=2, parent="2" * 64))
    assert (new.path, new.manifest.attempt) == (old.path, 2)
    kept = two / ".quarantine/step-000000004-superseded"
    assert CheckpointManifest.from_bytes((kept / "manifest.json").read_bytes(), kept) == old.manifest
    train(model, optimizer, 4, 5)
    with pytest.raises(CheckpointError, match="attempt 2 wrote this step, and this is attempt 1"):
        save(two, TorchState(model, optimizer), 4, attempt=1)
    assert verify(old.path) == new
    flip(new.path / "trainer.json", 30)
    verify(save(two, TorchState(model, optimizer), 4, attempt=2))
    assert sorted(os.listdir(two / ".quarantine")) == [
        "step-000000004-hash",
        "step-000000004-superseded",
    ]


def test_what_was_superseded_does_not_come_back_when_its_successor_is_damaged(two: Path) -> None:
    model, optimizer = build(seed=9)
    train(model, optimizer, 0, 4)
    flip(save(two, TorchState(model, optimizer), 4, attempt=2) / "trainer.json", 30)
    for _ in range(2):  # the first start finds the damage, and the next one what was done about it
        sweep(two)
        found = newest_valid(two, writer=True)
        assert found is not None
        assert found.manifest.step == 3
    assert sorted(os.listdir(two / ".quarantine")) == ["step-000000004-hash", "step-000000004-superseded"]


def test_what_made_way_for_a_killed_save_gets_its_name_back(two: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between the two renames there is no checkpoint of the step; older ones that made way stay where they are."""
    model, optimizer = build(seed=9)
    train(model, optimizer, 0, 4)
    save(two, TorchState(model, optimizer), 3, attempt=2)
    old, rename = verify(two / "step-000000004"), os.rename

    def killed(source: Path, target: Path) -> None:
        if Path(target).name == "step-000000004":
            os._exit(9)
        rename(source, target)

    def work() -> None:
        monkeypatch.setattr(os, "rename", killed)
        save(two, TorchState(model, optimizer), 4, attempt=2)

    assert status_of(forked(work)) == 9
    assert [path.name for path in find(two)] == ["step-000000003"]
    sweep(two)
    assert verify(two / "step-000000004") == old
    assert os.listdir(two / ".quarantine") == ["step-000000003-superseded"]
    save(two, TorchState(model, optimizer), 4, attempt=2)
    sweep(two)
    assert verify(two / "step-000000004").manifest.attempt == 2
