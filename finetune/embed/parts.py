"""The parts of an embedding on disk, until the table is whole.

In: vectors of consecutive sequences. Out: the same, by sequence. Kept: in a folder beside the table

    part-000012.bin     float16 or float32, little-endian: ``(rows, layers, D)``
    part-000012.json    its rows, and the hash of part-000012.bin; written last, so that a part is whole or not there

A row is a sequence, or a residue. A part whose bytes are not those that were written counts as not there.
"""

import fcntl
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from data.store.token_store import hash_of, new_hash
from zymogen.files.durable import flush, is_locked, write_atomic, write_then_rename


@dataclass(frozen=True, slots=True)
class EmbeddingParts:
    """A folder of parts of one embedding."""

    folder: Path
    row: tuple[int, int]
    """(layers, D)."""
    dtype: np.dtype[np.floating]
    """Little-endian."""

    def is_whole(self, number: int, rows: int) -> bool:
        """Whether a part of so many rows is there with the bytes that were written; reads it once."""
        path = self._array(number)
        try:
            said = json.loads(self._facts(number).read_text(encoding="utf-8"))
            with path.open("rb", buffering=0) as file:
                is_written = said == {"rows": rows, "hash": hash_of(file).hexdigest()}
                return is_written and path.stat().st_size == rows * self.row[0] * self.row[1] * self.dtype.itemsize
        except (OSError, ValueError):
            return False

    def write(self, number: int, vectors: NDArray[np.floating]) -> None:
        """Write a part, in the place of one that is not whole.

        Raises:
            OSError: it cannot be written.
        """
        path, content = self._array(number), vectors.astype(self.dtype).tobytes()
        new = write_then_rename(path)
        with new.open("wb") as file:  # the error of `tofile` on a full disk does not say that it is full
            file.write(content)
        flush(new)
        os.replace(new, path)
        facts = {"rows": len(vectors), "hash": new_hash(content).hexdigest()}
        write_atomic(self._facts(number), json.dumps(facts) + "\n")

    def read(self, number: int, first: int, count: int) -> NDArray[np.floating]:
        """Some rows of a part: ``(count, layers, D)``; not mapped, so that memory holds these alone."""
        size = self.row[0] * self.row[1]
        offset = first * size * self.dtype.itemsize
        found = np.fromfile(self._array(number), self.dtype, count * size, offset=offset)
        return found.reshape(count, *self.row)

    def _array(self, number: int) -> Path:
        return self.folder / f"part-{number:06d}.bin"

    def _facts(self, number: int) -> Path:
        return self.folder / f"part-{number:06d}.json"


@contextmanager
def held(work: Path, out: Path) -> Iterator[None]:
    """Hold the folder in which a table is prepared, so that two commands do not write one table.

    Raises:
        ValueError: another process holds it.
    """
    descriptor = os.open(work / "lock", os.O_RDWR | os.O_CREAT, 0o666)
    try:
        try:
            is_locked(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ValueError(
                f"{out}: another process is writing it; wait until that has ended, or give another name"
            ) from None
        yield
    finally:
        os.close(descriptor)
