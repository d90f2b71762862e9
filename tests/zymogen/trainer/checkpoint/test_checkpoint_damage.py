"""Damage to a checkpoint is found before anything is loaded."""

import errno
import json
import os
import random
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from support.checkpoint_run import (
    build,
    files_of,
    flip,
    plan_of,
    restore,
    rewrite_manifest,
    trainer_at,
    write_ranks,
)
from zymogen.processes.errors import CheckpointError
from zymogen.trainer.checkpoint.canonical import InvalidCheckpointError, canonical
from zymogen.trainer.checkpoint.commit import commit
from zymogen.trainer.checkpoint.files import blocks
from zymogen.trainer.checkpoint.load import find, newest_valid, open_checkpoint, verify
from zymogen.trainer.checkpoint.manifest import TrainerState, UnsupportedVersionError
from zymogen.trainer.checkpoint.writer import StagingBuffer
from zymogen.trainer.engine.named_state import TorchState


def test_every_flipped_byte_is_detected(two: Path) -> None:
    path, draw = two / "step-000000004", random.Random(0)
    files = files_of(path)
    assert len(files) == 6
    for file in files:
        raw = file.read_bytes()
        offsets = {0, len(raw) - 1, *(draw.randrange(len(raw)) for _ in range(10))}
        for offset in offsets:
            changed = bytearray(raw)
            changed[offset] ^= 1 << draw.randrange(8)
            file.write_bytes(changed)
            with pytest.raises(InvalidCheckpointError):
                verify(path)
        file.write_bytes(raw)
    assert verify(path).manifest.step == 4


RANKS = (1, 2, 3, 5)
"""That wrote a file of each part."""


def damaged_at_random(folder: Path, seed: int, count: int) -> None:
    """Flips and truncations of any file of every layout: none is verified and none is restored."""
    draw, done = random.Random(seed), 0
    for ranks in RANKS:
        path = write_ranks(folder / str(ranks), ranks)
        good = verify(path)
        state = TorchState(*build(seed=9))
        restore(good, state)
        files = {file: file.read_bytes() for file in files_of(path)}
        assert len(files) == 2 * ranks + 4
        for _ in range(count // len(RANKS)):
            file, raw = draw.choice(list(files.items()))
            offset = draw.randrange(len(raw))
            if draw.random() < 0.25:
                os.truncate(file, offset)
            else:
                with file.open("r+b") as changed:
                    changed.seek(offset)
                    changed.write(bytes([raw[offset] ^ 1 << draw.randrange(8)]))
            with pytest.raises(InvalidCheckpointError):
                verify(path)
            if file.suffix == ".safetensors":
                with pytest.raises(InvalidCheckpointError):
                    restore(good, state)
            file.write_bytes(raw)
            done += 1
        assert verify(path) == good
    assert done == count


def test_damage_at_random_places_is_never_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blocks, "BLOCK_BYTES", 512)
    damaged_at_random(tmp_path, seed=0, count=160)


@pytest.mark.prove
def test_ten_thousand_damages_are_never_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blocks, "BLOCK_BYTES", 512)
    damaged_at_random(tmp_path, seed=1, count=10_000)


DAMAGE: dict[str, tuple[Callable[[Path], object], str]] = {
    "flip": (lambda p: flip(p / "model/00000.safetensors", 400), "hash"),
    "truncated": (lambda p: os.truncate(p / "optimizer/00000.safetensors", 100), "size"),
    "emptied": (lambda p: os.truncate(p / "manifest.json", 0), "format"),
    "deleted": (lambda p: (p / "trainer.json").unlink(), "missing"),
    "no manifest": (lambda p: (p / "manifest.json").unlink(), "missing"),
    "extra": (lambda p: (p / "model/more.bin").write_bytes(b"x"), "extra"),
    "link": (lambda p: relink(p / "trainer.json"), "link"),
    "edited": (lambda p: rewrite_manifest(p, lambda m: m.update(attempt=2), False), "manifest"),
    "renamed": (lambda p: rewrite_manifest(p, lambda m: m.update(step=5), True), "step"),
    "not a directory": (lambda p: (shutil.rmtree(p), p.write_text("")), "link"),
    "older shard": (
        lambda p: shutil.copy(p.parent / "step-000000003/model/00000.safetensors", p / "model"),
        "hash",
    ),
}


def relink(file: Path) -> None:
    target = file.rename(file.parent.parent / "elsewhere")
    file.symlink_to(target)


@pytest.mark.parametrize("kind", DAMAGE)
def test_damage_is_quarantined_and_the_one_before_used(
    two: Path, kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    harm, reason = DAMAGE[kind]
    harm(two / "step-000000004")
    looked = newest_valid(two, writer=False)
    assert looked is not None
    assert looked.path.name == "step-000000003"
    assert (two / "step-000000004").exists(), "a reader moves nothing"
    found = newest_valid(two, writer=True)
    assert found is not None
    assert found.path.name == "step-000000003"
    assert len(found.rejected) == 1
    assert found.rejected[0].startswith("step-000000004: ")
    assert found.rejected[0] in capsys.readouterr().err
    assert os.listdir(two / ".quarantine") == [f"step-000000004-{reason}"]
    again = newest_valid(two, writer=True)
    assert again == replace(found, rejected=())


def test_none_valid_is_an_error_also_the_next_time(two: Path) -> None:
    for path in find(two):
        os.truncate(path / "trainer.json", 3)
    with pytest.raises(CheckpointError, match=r"no checkpoint verifies.*3 bytes"):
        newest_valid(two, writer=False)
    with pytest.raises(CheckpointError, match="no checkpoint verifies"):
        newest_valid(two, writer=True)
    assert find(two) == []
    with pytest.raises(CheckpointError, match=r"in quarantine: \['step-000000003-size"):
        newest_valid(two, writer=True)


def test_want_of_rights_costs_no_checkpoint_its_name(two: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: Path, *_: object) -> int:
        raise PermissionError(errno.EACCES, "Permission denied", str(path))

    monkeypatch.setattr(os, "open", refuse)  # root may read everything: no real file does it
    with pytest.raises(CheckpointError, match="Permission denied"):
        newest_valid(two, writer=True)
    assert len(find(two)) == 2


PATHS = ["../outside", "/etc/passwd", "model/../../x", "a\\b", "a//b", "./a", "", "c:x", "a\0b"]


@pytest.mark.parametrize("path", PATHS)
def test_path_that_leaves_the_checkpoint_is_refused(two: Path, path: str) -> None:
    def name_it(manifest: dict[str, Any]) -> None:
        manifest["files"][-1]["path"] = path

    rewrite_manifest(two / "step-000000004", name_it, sign=True)
    with pytest.raises(InvalidCheckpointError, match="allowed is a relative path") as caught:
        verify(two / "step-000000004")
    assert caught.value.reason == "path"
    assert repr(path) in str(caught.value)


CHANGES: dict[str, tuple[Callable[[dict[str, Any]], object], str]] = {
    "schema": (
        lambda m: m.update(schema="zymogen.checkpoint/2"),
        r"got 'zymogen.checkpoint/2', al",
    ),
    "missing": (lambda m: m.pop("attempt"), "manifest: attempt: Field required"),
    "unknown": (lambda m: m.update(more=1), "manifest: more: Unexpected keyword argument, got 1"),
    "duplicate": (lambda m: m["files"].append(m["files"][-1]), "each path once"),
    "bool": (lambda m: m.update(attempt=True), "manifest: attempt: Input should be a valid integer, got True"),
    "negative": (lambda m: m.update(attempt=-1), "attempt: Input should be greater than or equal to 0, got -1"),
    "fingerprint": (
        lambda m: m["fingerprints"].pop("corpus"),
        r"fingerprints: got \['identity', 'schedule', 'split'\], allowed .*'corpus'",
    ),
    "parent": (lambda m: m.update(parent="x"), r"manifest: parent: .*pattern.*, got 'x'"),
    "time": (lambda m: m.update(created="2025-01-01T00:00:00"), r"created: .*pattern.*, got '2025-01-01T00:00:00'"),
    "files": (lambda m: m.update(files=3), "files: .*, got 3"),
    "world_size": (lambda m: m.update(world_size="2"), "world_size: .*, got '2'"),
}


@pytest.mark.parametrize("change", CHANGES)
def test_manifest_is_parsed_strictly(two: Path, change: str) -> None:
    edit, message = CHANGES[change]
    rewrite_manifest(two / "step-000000004", edit, sign=True)
    with pytest.raises(InvalidCheckpointError if change == "duplicate" else UnsupportedVersionError, match=message):
        verify(two / "step-000000004")
    if change != "duplicate":  # the same without a hash that vouches for it is damage
        rewrite_manifest(two / "step-000000004", lambda m: m.update(self_sha256="0" * 64), sign=False)
        with pytest.raises(InvalidCheckpointError, match="self_sha256: says 000"):
            verify(two / "step-000000004")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t: t.update(step=-1), "trainer: step: Input should be greater than or equal to 0, got -1"),
        (lambda t: t.update(chain="abc"), "trainer: chain: .*pattern.*, got 'abc'"),
        (lambda t: t["cursor"].update(bin=-1), "trainer.cursor: got .*bin=-1.*, allowed 0 or more"),
        (lambda t: t["cursor"].update(window=2.0), "trainer: cursor.window: Input should be a valid integer, got 2.0"),
        (lambda t: t["cursor"].pop("bin"), "trainer is not canonical JSON with each of its fields"),
        (lambda t: t.pop("entries"), "trainer is not canonical JSON with each of its fields"),
        (lambda t: t.update(entries={"skipped_bins": {"bins": [-1]}}), "skipped_bins: bins.0: .*, got -1"),
        (lambda t: t.update(entries={"loss_monitor": {"losses": []}}), "loss_monitor: skipped_in_a_row: Field req"),
        (lambda t: t.update(entries={"loss_monitor": {"losses": ["1"], "skipped_in_a_row": 0}}), "losses.0: .*'1'"),
    ],
)
def test_trainer_is_parsed_strictly(change: Callable[[dict[str, Any]], object], message: str) -> None:
    content = json.loads(trainer_at(3).to_bytes())
    assert TrainerState.from_bytes(canonical(content)) == trainer_at(3)
    change(content)
    with pytest.raises(InvalidCheckpointError, match=message):
        TrainerState.from_bytes(canonical(content))


def test_no_state_is_written_that_no_reader_takes(tmp_path: Path) -> None:
    """A save that would make such a checkpoint publishes nothing."""
    wrong = replace(trainer_at(3), tokens_seen=-1)
    with pytest.raises(InvalidCheckpointError, match=r"tokens_seen: .*, got -1"):
        wrong.to_bytes()
    model, optimizer = build()
    for changes in ({"trainer": wrong}, {"parent": "abc"}):
        plan = replace(plan_of(tmp_path, 3), **changes)
        with pytest.raises(InvalidCheckpointError, match=r"got (-1|'abc')"):
            commit(plan, StagingBuffer().stage(TorchState(model, optimizer)))
        assert find(tmp_path) == []
        assert list(tmp_path.iterdir()) == []


def test_other_ranks_open_what_was_chosen(two: Path) -> None:
    chosen = newest_valid(two, writer=True)
    assert chosen is not None
    assert open_checkpoint(chosen.path, chosen.manifest.self_sha256) == chosen
    with pytest.raises(CheckpointError, match=r"the writer chose 000.*; let all ranks see one file system"):
        open_checkpoint(chosen.path, "0" * 64)
    flip(chosen.path / "trainer.json", 20)
    with pytest.raises(CheckpointError, match=r"sha256.*; let all ranks see one file system"):
        open_checkpoint(chosen.path, chosen.manifest.self_sha256)
