"""Chunks of bytes as a binary file, for readers that take nothing else: Biopython, the csv module.

In: an iterator of chunks. Out: a raw file to be read once, from its beginning. Kept: the rest of the current chunk.
"""

import io
from collections.abc import Iterator
from typing import Any


class ChunkFile(io.RawIOBase):
    """A raw file that holds what an iterator gives.

    Args:
        chunks: bytes in order.
    """

    def __init__(self, chunks: Iterator[bytes]) -> None:
        self._chunks = chunks
        self._rest = memoryview(b"")
        self.failure: ValueError | None = None
        """The error of the source, for a caller whose parser replaces it with an error of its own."""

    def readable(self) -> bool:
        """True."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Fill `buffer` from the current chunk, and return how many bytes were written; 0 at the end.

        Raises:
            ValueError: the source of the chunks raised it.
        """
        try:
            self._rest = self._rest or memoryview(next(self._chunks, b""))
        except ValueError as error:
            self.failure = error
            raise
        count = min(len(self._rest), len(buffer))
        buffer[:count], self._rest = self._rest[:count], self._rest[count:]
        return count
