"""Hashes of a file's blocks: made while it is written, compared in the buffer from which it is read.

In: bytes in the order of the file; later a file and its hashes. Out: a SHA-256 for each block; later bytes that match
theirs. Kept: the block that was read last.

A file of at most `BLOCK_BYTES` is one block, and its hash is the SHA-256 of the file, which any tool computes. A larger
one has the hash of each block and none of the whole: that would mean to hash every byte of a save twice (0.36 s more
for the 383 MiB of `esm2_35m`), and it would say nothing that the list does not, because the manifest's own hash covers
the list. Files of earlier versions have one hash of the whole, whatever their size. Who opens such a file reads all
of it once, and takes the hashes of the blocks from the bytes that had the right hash together.
"""

import hashlib
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from pretrain.checkpoint.canonical import InvalidCheckpoint

BLOCK_BYTES = 16 << 20
_READ_BYTES = 1 << 20
"""Bytes that are hashed while the processor's cache still has them."""


class _Hash(Protocol):
    """What takes the bytes of a file in order."""

    def update(self, data: memoryview, /) -> None:
        """Take the next ones."""


def num_blocks(size: int) -> int:
    """Blocks of a file of `size` bytes; one if it is empty."""
    return max(1, -(-size // BLOCK_BYTES))


def block_bytes(size: int, first: int, last: int) -> int:
    """Bytes of the blocks `[first, last)` of a file of `size` bytes."""
    return min(last * BLOCK_BYTES, size) - first * BLOCK_BYTES


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


class HashedBlocks:
    """A file that is read in blocks, each of which is hashed in the buffer from which it is then used.

    Args:
        path: the file; a link is refused.
        size: its bytes.
        hashes: one for each block, or one of the whole.

    Raises:
        InvalidCheckpoint: it is longer or shorter, or (`hash`, on reading) a block is not what was written.
        OSError: it cannot be read.
    """

    def __init__(self, path: Path, size: int, hashes: Sequence[str]) -> None:
        self.path, self.size, self._hashes = path, size, hashes
        self._buffer = memoryview(b"")
        self._held = -1
        """The block that the buffer has, if it has one that is right."""
        self._descriptor = -1
        self._descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        if (found := os.fstat(self._descriptor).st_size) != size:
            raise InvalidCheckpoint("size", f"{path.name}: {found} bytes, manifest says {size}")

    def __del__(self) -> None:
        """Close it."""
        if self._descriptor >= 0:
            os.close(self._descriptor)

    def check(self, first: int, last: int) -> None:
        """Read blocks `[first, last)`; of a file that has one hash, all of it."""
        if not self._has_blocks():
            return
        for index in range(first, last):
            self.block(index)

    def read_into(self, start: int, buffer: memoryview) -> None:
        """Fill `buffer` with the bytes from `start` on."""
        position = 0
        while position < len(buffer):
            index, offset = divmod(start + position, BLOCK_BYTES)
            part = self.block(index)[offset : offset + len(buffer) - position]
            if not part:
                raise InvalidCheckpoint("tensors", f"{self.path.name}: it ends at {self.size}, before what is listed")
            buffer[position : position + len(part)] = part
            position += len(part)

    def read(self, start: int, stop: int) -> bytearray:
        """The bytes of a range."""
        content = bytearray(stop - start)
        self.read_into(start, memoryview(content))
        return content

    def block(self, index: int) -> memoryview:
        """The bytes of a block, which have the right hash; the next block takes their place."""
        if index != self._held:
            self._has_blocks()
            if index >= len(self._hashes):
                return memoryview(b"")
            found = hashlib.sha256()
            self._read(index, found)
            self._require(found.hexdigest(), self._hashes[index], f", block {index}")
            self._held = index
        return self._buffer[: block_bytes(self.size, index, index + 1)]

    def _has_blocks(self) -> bool:
        """Whether there is a hash for each block; if not, all of the file is compared now, and then there is."""
        if len(self._hashes) == num_blocks(self.size):
            return True
        whole, blocks = hashlib.sha256(), BlockHashes()
        for index in range(num_blocks(self.size)):
            self._read(index, whole, blocks)
        self._require(whole.hexdigest(), self._hashes[0])
        self._hashes = blocks.hexdigests()
        return False

    def _read(self, index: int, *hashes: _Hash) -> None:
        """Fill the buffer with a block as it is on the disk, and hash what is in the buffer."""
        self._held = -1
        if not len(self._buffer):
            self._buffer = memoryview(bytearray(min(BLOCK_BYTES, self.size)))
        start = index * BLOCK_BYTES
        block, filled = self._buffer[: block_bytes(self.size, index, index + 1)], 0
        while filled < len(block):
            part = block[filled : filled + _READ_BYTES]
            count = os.preadv(self._descriptor, [part], start + filled)
            if not count:
                text = f"{self.path.name}: {start + filled} bytes, manifest says {self.size}"
                raise InvalidCheckpoint("size", text)
            for each in hashes:
                each.update(part[:count])
            filled += count

    def _require(self, found: str, wanted: str, where: str = "") -> None:
        if found != wanted:
            words = f"{self.path.name}{where}: sha256 {found}, manifest says {wanted}"
            raise InvalidCheckpoint("hash", words)
