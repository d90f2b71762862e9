"""Files of a checkpoint, and their blocks: each has a hash, so that a part of a file is checked without the rest.

In: tensors, or the bytes of a file in order; later a file and the hashes that its manifest has for it. Out: a SHA-256
for each block; later bytes that match theirs, hashed in the buffer from which they are used. Kept: the block that was
read last.

Each rank writes one file of a part, `model` or `optimizer`, in which its tensors follow each other in the order of
their names. One that it stores whole has its own shape, so that any safetensors reader sees it, and a piece is flat;
`checkpoint.files.index` says which piece of which tensor that is.

A file of at most `BLOCK_BYTES` is one block, and its hash is the SHA-256 of the file, which any tool computes. A larger
one has the hash of each block and none of the whole: that would mean to hash every byte of a save twice.
"""

import errno
import hashlib
import json
import math
import os
import stat
import struct
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import torch
from torch import Tensor

from zymogen.trainer.checkpoint.canonical import Count, InvalidCheckpointError, Sha256

PARTS = ("model", "optimizer")
DTYPE = "F32"  # safetensors' name; masters and moments are fp32 under every engine


@dataclass(frozen=True, kw_only=True, slots=True)
class FileEntry:
    """One file of a checkpoint: path relative to it, size in bytes, lower-case hex SHA-256 of each of its blocks.

    For a file of one block it is the SHA-256 of the file.
    """

    path: str
    size: Count
    sha256: tuple[Sha256, ...]

    def __post_init__(self) -> None:
        """Check the path, and the number of hashes."""
        _require_relative_path(self.path)
        if len(self.sha256) != (wanted := num_blocks(self.size)):
            text = f"{self.path}: {len(self.sha256)} hashes, allowed {wanted} for {self.size} bytes"
            raise InvalidCheckpointError("format", text)


def data_file(rank: int) -> str:
    """Name of the file that a rank writes in the folder of each part."""
    return f"{rank:05d}.safetensors"


def write_file(folder: Path, path: str, chunks: Iterable[bytes | memoryview]) -> FileEntry:
    """Write a new file to the device, and return its hashes and size.

    A failed fsync is final: the kernel may have dropped the pages.
    """
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
    hashes, size = BlockHashes(), 0
    with os.fdopen(os.open(folder / path, flags, 0o666), "wb") as file:
        for chunk in chunks:
            file.write(chunk)
            hashes.update(chunk)
            size += len(chunk)
        file.flush()
        os.fsync(file.fileno())
        on_disk = os.fstat(file.fileno()).st_size
    if on_disk != size:
        raise OSError(f"{path}: wrote {size} bytes, the file has {on_disk}")
    return FileEntry(path=path, size=size, sha256=hashes.hexdigests())


def safetensors_header(shapes: Mapping[str, Sequence[int]]) -> bytes:
    """The begin of a safetensors file of fp32 tensors that follow each other in this order."""
    header, stop = {}, 0
    for key, shape in shapes.items():
        start, stop = stop, stop + 4 * math.prod(shape)
        header[key] = {"dtype": DTYPE, "shape": list(shape), "data_offsets": [start, stop]}
    raw = json.dumps(header).encode()
    raw += b" " * (-len(raw) % 8)  # data starts aligned
    return struct.pack("<Q", len(raw)) + raw


def write_tensors(folder: Path, path: str, tensors: Mapping[str, Tensor]) -> FileEntry:
    """Write a new safetensors file of fp32 tensors on the host, in their order, and fsync it."""

    def chunks() -> Iterator[bytes | memoryview]:
        yield safetensors_header({key: tuple(tensor.shape) for key, tensor in tensors.items()})
        for key, tensor in tensors.items():
            assert tensor.dtype == torch.float32, f"{key} is {tensor.dtype}"
            if tensor.numel():
                yield tensor.contiguous().numpy().data.cast("B")

    return write_file(folder, path, chunks())


T = TypeVar("T")
BLOCK_BYTES = 16 << 20
_READ_BYTES = 1 << 20
"""Bytes that are hashed while the processor's cache still has them."""
_TRANSIENT = frozenset({errno.EIO, errno.ESTALE, errno.ETIMEDOUT})
"""Errors that a network file system gives for a while: they say nothing about the bytes."""
RETRY_S = 1.0
_MOST_JSON_BYTES = 256 << 20
"""A manifest of 1,024 ranks that store 15 billion parameters has 2 MB."""


def num_blocks(size: int) -> int:
    """Blocks of a file of `size` bytes; one if it is empty."""
    return max(1, -(-size // BLOCK_BYTES))


def block_bytes(size: int, number: int) -> int:
    """Bytes of a block of a file of `size` bytes."""
    return min((number + 1) * BLOCK_BYTES, size) - number * BLOCK_BYTES


class BlockHashes:
    """The hashes of a file's blocks, from its bytes in order."""

    def __init__(self) -> None:
        self._done: list[str] = []
        self._block, self._room = hashlib.sha256(), BLOCK_BYTES

    def update(self, data: bytes | memoryview) -> None:
        """Add the next bytes."""
        view = memoryview(data)
        while len(view) > self._room:
            self._block.update(view[: self._room])
            view = view[self._room :]
            self._done.append(self._block.hexdigest())
            self._block, self._room = hashlib.sha256(), BLOCK_BYTES
        self._block.update(view)
        self._room -= len(view)

    def hexdigests(self) -> tuple[str, ...]:
        """One for each block, lower-case."""
        return (*self._done, self._block.hexdigest())


def retried(read: Callable[[], T]) -> T:
    """Read, and once more after an error that a network file system may recover from."""
    try:
        return read()
    except OSError as error:
        if error.errno not in _TRANSIENT:
            raise
    time.sleep(RETRY_S)
    return read()


def read_small(path: Path) -> bytes:
    """The content of a file of JSON.

    Raises:
        InvalidCheckpointError: it is no regular file, or too large to be one of ours.
        OSError: it cannot be read.
    """

    def read() -> bytes:
        descriptor, size = _open(path)
        with os.fdopen(descriptor, "rb") as file:
            if size > _MOST_JSON_BYTES:
                raise InvalidCheckpointError("size", f"{path.name}: {size} bytes, allowed {_MOST_JSON_BYTES}")
            return file.read(_MOST_JSON_BYTES)

    return retried(read)


class BlockReader:
    """Reads blocks of a checkpoint's files; one file is open at a time, and one block in memory.

    Args:
        checkpoint: its folder.
    """

    def __init__(self, checkpoint: Path) -> None:
        self._checkpoint = checkpoint
        self._path, self._descriptor = "", -1
        self._buffer = torch.empty(0, dtype=torch.uint8)

    def __del__(self) -> None:
        """Close the file that was read last."""
        self._close()

    def read(self, file: "FileEntry", number: int) -> Tensor:
        """One block, ``(bytes,)`` uint8; the next one takes its place.

        Args:
            file: as the manifest lists it; a link is refused.
            number: of the block in it.

        Raises:
            InvalidCheckpointError: the file is longer or shorter, or (`hash`) the block is not what was written.
            OSError: it cannot be read.
        """
        found, expected = retried(lambda: self._filled(file.path, file.size, number)), file.sha256[number]
        if found != expected:
            where = f"{file.path}, block {number}" if len(file.sha256) > 1 else file.path
            raise InvalidCheckpointError("hash", f"{where}: sha256 {found}, manifest says {expected}")
        return self._buffer[: block_bytes(file.size, number)]

    def _filled(self, path: str, size: int, number: int) -> str:
        """Fill the buffer with a block as it is on the disk; the hash of what is in the buffer."""
        try:
            if path != self._path:
                self._close()
                self._descriptor, found = _open(self._checkpoint / path)
                self._path = path
                if found != size:
                    raise InvalidCheckpointError("size", f"{path}: {found} bytes, manifest says {size}")
            if len(self._buffer) < (wanted := min(BLOCK_BYTES, size)):
                self._buffer = torch.empty(wanted, dtype=torch.uint8)
            start, sha256 = number * BLOCK_BYTES, hashlib.sha256()
            block, filled = self._buffer.numpy().data[: block_bytes(size, number)], 0
            while filled < len(block):
                part = block[filled : filled + _READ_BYTES]
                count = os.preadv(self._descriptor, [part], start + filled)
                if not count:
                    raise InvalidCheckpointError("size", f"{path}: {start + filled} bytes, manifest says {size}")
                sha256.update(part[:count])
                filled += count
        except BaseException:
            self._close()
            raise
        return sha256.hexdigest()

    def _close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
        self._path, self._descriptor = "", -1


def _open(path: Path) -> tuple[int, int]:
    """A descriptor of a regular file, and its size; nothing else is opened, as that may wait for ever."""
    if not stat.S_ISREG(path.lstat().st_mode):
        raise InvalidCheckpointError("link", f"{path.name} is not a regular file")
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    return descriptor, os.fstat(descriptor).st_size


def _require_relative_path(path: str) -> None:
    """A path that stays inside the checkpoint: relative, `/`-separated, no empty, `.` or `..` part.

    Raises:
        InvalidCheckpointError: with the path.
    """
    inside = all(part not in ("", ".", "..") for part in path.split("/")) and path.isprintable()
    if not inside or "\\" in path or ":" in path:
        raise InvalidCheckpointError(
            "path",
            f"manifest names the file {path!r}; allowed is a relative path with no empty, '.' or "
            "'..' part, no backslash and no colon",
        )
