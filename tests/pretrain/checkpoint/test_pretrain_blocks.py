"""Files are hashed by blocks, and whoever reads a part of one compares the blocks that it lies in."""

import hashlib
import json
import os
import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from pretrain.checkpoint import InvalidCheckpoint, OtherVersion, StorageError, open_checkpoint, restore, verify
from pretrain.checkpoint.blocks import hashes
from pretrain.checkpoint.blocks.hashes import BlockHashes, HashedBlocks
from pretrain.checkpoint.blocks.shares import share_of
from pretrain.checkpoint.load import check_data
from pretrain.checkpoint.manifest import FileEntry
from pretrain.engine.named_state import TorchState
from support.checkpoint_run import (
    as_before_blocks,
    assert_same,
    build,
    everything,
    flip,
    rewrite_manifest,
    train,
    write_ranks,
)

BLOCK = 512


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hashes, "BLOCK_BYTES", BLOCK)


def drawn(size: int) -> bytes:
    return random.Random(size).randbytes(size)


def by_hand(content: bytes) -> tuple[str, ...]:
    parts = [content[at : at + BLOCK] for at in range(0, len(content), BLOCK)] or [b""]
    return tuple(hashlib.sha256(part).hexdigest() for part in parts)


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("size", [0, 1, BLOCK - 1, BLOCK, BLOCK + 1, 3 * BLOCK, 3 * BLOCK + 7])
def test_a_file_has_a_hash_for_each_block(size: int) -> None:
    content, found = drawn(size), BlockHashes()
    for at in range(0, size, 100):  # parts that fit into no block
        found.update(memoryview(content)[at : at + 100])
    assert found.hexdigests() == by_hand(content)
    entry = FileEntry(path="model/a", size=size, hashes=found.hexdigests())
    assert FileEntry.from_record(json.loads(json.dumps(entry.record()))) == entry
    whole = hashlib.sha256(content).hexdigest()
    assert entry.record().get("sha256") == (whole if size <= BLOCK else None)
    assert entry.record().get("blocks") == (list(by_hand(content)) if size > BLOCK else None)


@pytest.mark.usefixtures("small_blocks")
def test_a_range_is_read_from_blocks_that_are_right(tmp_path: Path) -> None:
    content, file = drawn(5 * BLOCK + 9), tmp_path / "file"
    file.write_bytes(content)
    draw = random.Random(1)
    for known in (by_hand(content), (hashlib.sha256(content).hexdigest(),)):
        read = HashedBlocks(file, len(content), known)
        for _ in range(200):
            start, stop = sorted(draw.choices(range(len(content) + 1), k=2))
            assert read.read(start, stop) == content[start:stop]
        with pytest.raises(InvalidCheckpoint, match="it ends at 2569"):
            read.read(2560, 2570)
    flip(file, 2 * BLOCK + 5)
    read = HashedBlocks(file, len(content), by_hand(content))
    for start, stop in ((0, 2 * BLOCK), (3 * BLOCK, len(content))):
        assert read.read(start, stop) == content[start:stop]
    for start, stop in ((2 * BLOCK, 2 * BLOCK + 1), (3 * BLOCK - 1, 3 * BLOCK), (0, len(content))):
        with pytest.raises(InvalidCheckpoint, match=r"file, block 2: sha256 .* manifest says") as caught:
            read.read(start, stop)
        assert caught.value.reason == "hash"
    with pytest.raises(InvalidCheckpoint, match="file: sha256"):  # one hash: every part of the file is in it
        HashedBlocks(file, len(content), (hashlib.sha256(content).hexdigest(),)).read(0, 1)
    (tmp_path / "link").symlink_to(file)
    with pytest.raises(OSError, match="symbolic links"):
        HashedBlocks(tmp_path / "link", len(content), by_hand(content))
    os.truncate(file, BLOCK)
    with pytest.raises(InvalidCheckpoint, match="512 bytes, manifest says 2569"):
        HashedBlocks(file, len(content), by_hand(content))


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("before", [False, True], ids=["blocks", "one hash"])
def test_bytes_that_change_between_two_reads_are_never_used(
    tmp_path: Path, before: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A disk that gives other bytes from the second read of a place on: each is right or refused."""
    content, file = drawn(3 * BLOCK), tmp_path / "file"
    file.write_bytes(content)
    preadv, reads = os.preadv, dict[int, int]()

    def unsteady(descriptor: int, buffers: list[memoryview], offset: int) -> int:
        count = preadv(descriptor, buffers, offset)
        reads[offset] = reads.get(offset, 0) + 1
        if reads[offset] > 1:
            buffers[0][0] ^= 1
        return count

    monkeypatch.setattr(os, "preadv", unsteady)
    read = HashedBlocks(file, len(content), (hashlib.sha256(content).hexdigest(),) if before else by_hand(content))
    good = 0
    for _ in range(3):
        for start in range(0, len(content), BLOCK):
            try:
                found = read.read(start, start + BLOCK)
            except InvalidCheckpoint:
                continue
            assert found == content[start : start + BLOCK]
            good += 1
    assert good == (0 if before else 3)  # with one hash, the first read of all served to know the blocks' hashes


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("ranks", [1, 3])
def test_old_and_new_manifests_load_the_same(tmp_path: Path, ranks: int) -> None:
    model, optimizer = build()
    train(model, optimizer, 0, 4)
    expected = everything(model, optimizer)
    path = write_ranks(tmp_path, ranks)
    listed = {file["path"]: file for file in json.loads((path / "manifest.json").read_text())["files"]}
    for name, file in listed.items():
        content = (path / name).read_bytes()
        assert file.get("blocks", [file.get("sha256")]) == list(by_hand(content)), name
    large = [name for name, file in listed.items() if "blocks" in file]
    assert len(large) >= 2 * ranks
    for _ in range(2):
        other, other_optimizer = build(seed=8)
        restore(verify(path), TorchState(other, other_optimizer))
        assert_same(everything(other, other_optimizer), expected)
        as_before_blocks(path)
    assert b"blocks" not in (path / "manifest.json").read_bytes()


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("before", [False, True], ids=["blocks", "one hash"])
def test_what_changed_since_it_was_verified_is_not_loaded(tmp_path: Path, before: bool) -> None:
    path = write_ranks(tmp_path, 2)
    if before:
        as_before_blocks(path)
    checkpoint = verify(path)
    size = (path / "optimizer/00001.safetensors").stat().st_size
    flip(path / "optimizer/00001.safetensors", size - 3)
    assert open_checkpoint(path, checkpoint.manifest_sha256) == checkpoint, "its JSON is right"
    with pytest.raises(StorageError, match=r"has changed since it was verified: 00001.safetensors.*start again"):
        restore(checkpoint, TorchState(*build(seed=8)))


def edit(file: str, change: Callable[[dict[str, Any]], object]) -> Callable[[dict[str, Any]], None]:
    return lambda manifest: next(change(each) for each in manifest["files"] if each["path"] == file) and None


@pytest.mark.usefixtures("small_blocks")
def test_a_list_of_blocks_is_parsed_strictly(tmp_path: Path) -> None:
    path, file = write_ranks(tmp_path, 1), "model/00000.safetensors"
    for change, message in (
        (lambda f: f["blocks"].pop(), r"model/00000.safetensors: \d hashes, allowed \d for"),
        (lambda f: f.update(blocks=f["blocks"][:1]), r"file.blocks: got .*, allowed 2 or more"),
        (lambda f: f["blocks"].append(3), "sha256 3 is not one"),
        (lambda f: f.update(sha256="0" * 64), r"unknown fields \['sha256'\]"),
        (lambda f: f.update(blocks={}), "file.blocks: got {}, allowed list"),
    ):
        original = (path / "manifest.json").read_bytes()
        rewrite_manifest(path, edit(file, change), sign=True)
        with pytest.raises(OtherVersion, match=message):
            verify(path)
        (path / "manifest.json").write_bytes(original)


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("ranks", [1, 2, 3, 7, pytest.param(100, marks=pytest.mark.slow)])
def test_ranks_deal_every_block_once(tmp_path: Path, ranks: int) -> None:
    path = write_ranks(tmp_path, 3)
    for before in (False, True):
        checkpoint = verify(as_before_blocks(path) if before else path)
        files = checkpoint.manifest.files
        dealt = [share_of(files, rank, ranks) for rank in range(ranks)]
        read = [(s.file.path, n) for share in dealt for s in share for n in range(s.first, s.last)]
        data = [file for file in files if not file.path.endswith(".json")]
        assert read == [(file.path, n) for file in data for n in range(-(-file.size // BLOCK))]
        total = sum(file.size for file in data)
        sizes = [sum(hashes.block_bytes(s.file.size, s.first, s.last) for s in share) for share in dealt]
        assert sum(sizes) == total
        most = max(file.size for file in data) if before else BLOCK
        assert max(sizes) <= total / ranks + most
        for file in data:
            flip(path / file.path, file.size - 1)
            found = [_is_damaged(checkpoint, rank, ranks) for rank in range(ranks)]
            assert sum(found) == 1
            flip(path / file.path, file.size - 1)


def _is_damaged(checkpoint: Any, rank: int, ranks: int) -> bool:
    try:
        check_data(checkpoint, share_of(checkpoint.manifest.files, rank, ranks))
    except InvalidCheckpoint as error:
        return error.reason == "hash"
    return False


@pytest.mark.usefixtures("small_blocks")
def test_a_rank_reads_the_blocks_of_its_rows_alone(tmp_path: Path) -> None:
    path = write_ranks(tmp_path, 1)
    reader = verify(path).tensors("optimizer")
    whole = reader.read("exp_avg/embed.weight")
    flip(path / "optimizer/00000.safetensors", -1)
    reader = open_checkpoint(path, verify_manifest(path)).tensors("optimizer")
    assert torch.equal(reader.read_span("exp_avg/embed.weight", 12, 30), whole.flatten()[12:30])
    with pytest.raises(InvalidCheckpoint, match="block"):
        list(map(reader.read, reader.shapes))


def verify_manifest(path: Path) -> str:
    return str(json.loads((path / "manifest.json").read_text())["self_sha256"])


def test_an_entry_is_what_was_read() -> None:
    entry = FileEntry(path="model/a", size=3, hashes=("0" * 64,))
    assert entry.record() == {"path": "model/a", "size": 3, "sha256": "0" * 64}
    with pytest.raises(InvalidCheckpoint, match="2 hashes, allowed 1 for 3 bytes"):
        replace(entry, hashes=("0" * 64,) * 2)
