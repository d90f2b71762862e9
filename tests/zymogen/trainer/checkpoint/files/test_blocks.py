"""Files are hashed by blocks, and whoever reads a part of one compares the blocks that it lies in."""

import errno
import hashlib
import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from support.checkpoint_run import build, flip, restore, rewrite_manifest, write_ranks, write_two
from zymogen.processes.errors import StorageError
from zymogen.trainer.checkpoint.canonical import InvalidCheckpointError
from zymogen.trainer.checkpoint.files import blocks
from zymogen.trainer.checkpoint.files.blocks import BlockHashes, BlockReader, FileEntry
from zymogen.trainer.checkpoint.load import find, newest_valid, unreadable, verify
from zymogen.trainer.checkpoint.manifest import UnsupportedVersionError
from zymogen.trainer.checkpoint.reader import read_tensors
from zymogen.trainer.engine.named_state import TorchState

BLOCK = 512


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blocks, "BLOCK_BYTES", BLOCK)
    monkeypatch.setattr(blocks, "RETRY_S", 0.0)


@pytest.fixture
def two(tmp_path: Path, small_blocks: None) -> Path:
    """Steps 3 and 4, in files of several blocks."""
    return write_two(tmp_path / "run")


def drawn(size: int) -> bytes:
    return random.Random(size).randbytes(size)


def by_hand(content: bytes) -> tuple[str, ...]:
    parts = [content[at : at + BLOCK] for at in range(0, len(content), BLOCK)] or [b""]
    return tuple(hashlib.sha256(part).hexdigest() for part in parts)


@pytest.mark.parametrize("size", [0, 1, BLOCK - 1, BLOCK, BLOCK + 1, 3 * BLOCK, 3 * BLOCK + 7])
def test_a_file_has_a_hash_for_each_block(size: int) -> None:
    content, found = drawn(size), BlockHashes()
    for at in range(0, size, 100):  # parts that fit into no block
        found.update(memoryview(content)[at : at + 100])
    assert found.hexdigests() == by_hand(content)
    assert FileEntry(path="model/a", size=size, sha256=found.hexdigests()).size == size


def test_a_block_is_read_and_right(tmp_path: Path) -> None:
    content, file = drawn(5 * BLOCK + 9), tmp_path / "file"
    file.write_bytes(content)
    entry, reader = FileEntry(path="file", size=len(content), sha256=by_hand(content)), BlockReader(tmp_path)
    for number in (0, 5, 2, 1, 5):
        assert reader.read(entry, number).numpy().tobytes() == content[number * BLOCK : (number + 1) * BLOCK]
    flip(file, 2 * BLOCK + 5)
    assert reader.read(entry, 1).numpy().tobytes() == content[BLOCK : 2 * BLOCK]
    with pytest.raises(InvalidCheckpointError, match=r"file, block 2: sha256 .* manifest says") as caught:
        reader.read(entry, 2)
    assert caught.value.reason == "hash"
    os.truncate(file, BLOCK)
    for each in (reader, BlockReader(tmp_path)):
        with pytest.raises(InvalidCheckpointError, match=r"file: \d+ bytes, manifest says 2569"):
            each.read(entry, 3)


def unsteady(monkeypatch: pytest.MonkeyPatch, code: int, times: int) -> list[int]:
    """A disk whose first reads of data files fail with an error; the numbers of those that did."""
    preadv, failed = os.preadv, list[int]()

    def read(descriptor: int, buffers: list[memoryview], offset: int) -> int:
        if len(failed) < times:
            failed.append(offset)
            raise OSError(code, os.strerror(code))
        return preadv(descriptor, buffers, offset)

    monkeypatch.setattr(os, "preadv", read)
    return failed


TRANSIENT = [errno.EIO, errno.ESTALE, errno.ETIMEDOUT]


@pytest.mark.parametrize("code", TRANSIENT)
def test_a_read_that_fails_once_is_made_again(two: Path, code: int, monkeypatch: pytest.MonkeyPatch) -> None:
    failed = unsteady(monkeypatch, code, 1)
    assert verify(two / "step-000000004").manifest.step == 4
    assert failed == [0]


@pytest.mark.parametrize("code", [*TRANSIENT, errno.EACCES, errno.EMFILE])
def test_storage_that_does_not_answer_is_not_damage(two: Path, code: int, monkeypatch: pytest.MonkeyPatch) -> None:
    unsteady(monkeypatch, code, 1000)
    for _ in range(2):
        with pytest.raises(StorageError, match=rf"step-000000004: cannot be read: \[Errno {code}\].*nothing was moved"):
            newest_valid(two, writer=True)
    with pytest.raises(StorageError, match="cannot be read"):
        restore(verify(two / "step-000000004", unreadable), TorchState(*build(seed=9)))
    assert [path.name for path in find(two)] == ["step-000000004", "step-000000003"]
    assert not (two / ".quarantine").exists()


@pytest.mark.parametrize("file", ["manifest.json", "trainer.json", "model/index.json", "optimizer/index.json"])
@pytest.mark.parametrize("code", TRANSIENT)
def test_json_that_the_storage_does_not_give_is_not_damage(
    two: Path, file: str, code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened, wanted = os.open, two / "step-000000004" / file
    tried = []

    def fails(path: Any, *rest: Any) -> int:
        if Path(path) == wanted:
            tried.append(path)
            raise OSError(code, os.strerror(code))
        return opened(path, *rest)

    monkeypatch.setattr(os, "open", fails)
    with pytest.raises(StorageError, match="cannot be read"):
        newest_valid(two, writer=True)
    assert len(tried) == 2
    assert len(find(two)) == 2


def to_fifo(file: Path) -> None:
    file.unlink()
    os.mkfifo(file)


def to_device(file: Path) -> None:
    file.unlink()
    file.symlink_to("/dev/zero")


def to_folder(file: Path) -> None:
    file.unlink()
    file.mkdir()


def to_giant(file: Path) -> None:
    os.truncate(file, 1 << 40)


@pytest.mark.parametrize("change", [to_fifo, to_device, to_folder, to_giant])
@pytest.mark.parametrize(
    "file", ["manifest.json", "trainer.json", "model/index.json", "optimizer/index.json", "model/00000.safetensors"]
)
def test_what_is_no_file_of_ours_is_never_read(two: Path, file: str, change: Callable[[Path], None]) -> None:
    """A FIFO would be waited for without end, a device or a file of a terabyte read without end."""
    change(two / "step-000000004" / file)
    with pytest.raises(InvalidCheckpointError) as caught:
        verify(two / "step-000000004")
    assert caught.value.reason in ("link", "size", "missing", "extra")
    found = newest_valid(two, writer=True)
    assert found is not None
    assert found.path.name == "step-000000003"


def test_bytes_that_change_after_they_were_verified_are_never_used(two: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk that gives other bytes from the second read of a place on: each is right or refused."""
    checkpoint = verify(two / "step-000000004")
    expected = read_tensors(checkpoint, "model")
    preadv = os.preadv

    def changed(descriptor: int, buffers: list[memoryview], offset: int) -> int:
        count = preadv(descriptor, buffers, offset)
        buffers[0][0] ^= 1
        return count

    monkeypatch.setattr(os, "preadv", changed)
    with pytest.raises(InvalidCheckpointError, match="sha256"):
        read_tensors(checkpoint, "model")
    with pytest.raises(InvalidCheckpointError, match="sha256"):
        restore(checkpoint, TorchState(*build(seed=8)))
    monkeypatch.setattr(os, "preadv", preadv)
    assert all(torch.equal(found, expected[name]) for name, found in read_tensors(checkpoint, "model").items())


def edit(file: str, change: Callable[[dict[str, Any]], object]) -> Callable[[dict[str, Any]], None]:
    return lambda manifest: next(change(each) for each in manifest["files"] if each["path"] == file) and None


def test_a_list_of_hashes_is_parsed_strictly(tmp_path: Path) -> None:
    path, file = write_ranks(tmp_path, 1), "model/00000.safetensors"
    for change, message in (
        (lambda f: f["sha256"].pop(), r"model/00000.safetensors: \d hashes, allowed \d for"),
        (lambda f: f["sha256"].append(3), r"manifest: files\.\d+\.sha256\.\d: .*, got 3"),
        (lambda f: f.update(more="0" * 64), r"files\.\d+\.more: Unexpected keyword argument"),
        (lambda f: f.update(sha256={}), "sha256: .*, got {}"),
        (lambda f: f.update(sha256="0" * 64), "sha256: .*, got '0+"),
    ):
        original = (path / "manifest.json").read_bytes()
        rewrite_manifest(path, edit(file, change), sign=True)
        with pytest.raises(UnsupportedVersionError, match=message):
            verify(path)
        (path / "manifest.json").write_bytes(original)
