"""Writing a token store: appended block by block, committed about each second, continued after any interruption.

In: blocks. Out: nothing. Kept: the files of `data.store.token_store`, and its journal until it is published.
"""

import json
import os
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import replace
from operator import add
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from data.sources.block import START, RecordBlock
from data.store.journal import JOURNAL, BuildJournal, read_journal, write_journal
from data.store.token_store import (
    FACTS,
    FORMAT,
    REJECTED,
    UINT64,
    StoreCounts,
    facts_text,
    fingerprint,
    hash_of,
    new_hash,
)
from zymogen.files.durable import FULL, describe_os_error, write_atomic

COMMIT_S = 1.0
"""A block that comes later than this after a commit is committed."""
COMMIT_BYTES = 64 << 20
"""After so many bytes a commit is made earlier."""
_PIECE_BYTES = 256 << 10
"""How much is hashed and written at a time: it must fit into the processor's cache."""


class StoreWriter:
    """One store that is being written, by one process at a time (`data.store.folder`).

    Args:
        folder: folder of the store. What an earlier build committed there is kept; what it wrote after that is cut off.
        key: key of the build.
        is_followed: whether other processes read what was committed: each block is, even of a source that then stalls.

    Raises:
        ValueError: the folder holds an unfinished build with another key, or one that is damaged; or it cannot be
            written to.
    """

    def __init__(self, folder: Path, key: str, *, is_followed: bool = False) -> None:
        self.folder, self._is_followed = folder, is_followed
        before = read_journal(folder)
        if before is not None and not before.num_read:
            before = None  # nothing was committed, so any build may begin here
        if before is not None and before.key != key:
            raise ValueError(
                f"{folder} holds an unfinished store of other sources or settings; delete it, or choose another folder"
            )
        self.committed = before or BuildJournal(key=key)
        """What is safely on disk."""
        self.journal = self.committed
        """The state of the store when everything that was appended is written."""
        self._files: dict[str, IO[bytes]] = {}
        self._hashes = {name: new_hash() for name in self.committed.file_sizes()}
        self._uncommitted, self._last_commit = 0, time.monotonic()
        try:
            with self._refusing():
                if before is None:
                    write_journal(folder, self.committed)  # first, as it shows that the other files are ours
                for name, size in self.committed.file_sizes().items():
                    self._open(name, size, fresh=before is None)
        except BaseException:
            self.close()
            raise

    def _open(self, name: str, size: int, *, fresh: bool) -> None:
        path = self.folder / name
        if fresh or not (size or path.exists()):
            self._files[name] = path.open("w+b", buffering=0)
            self._write(name, bytes(size))  # the 0 that offsets begin with
            return
        if not path.exists():
            raise ValueError(f"{path} is missing; delete the folder, it is built again")
        self._files[name] = file = path.open("r+b", buffering=0)
        found = os.fstat(file.fileno()).st_size
        if found < size:
            raise ValueError(
                f"{path} has {found} bytes, {JOURNAL} says {size}: it was cut short; delete the folder, it is built "
                "again"
            )
        file.truncate(size)
        self._hashes[name] = hash_of(file, size)

    def append(self, block: RecordBlock, source: str) -> None:
        """Add a block of the current source.

        Args:
            block: consecutive records.
            source: name of the source, for rejected.jsonl.

        Raises:
            ValueError: it could not be written (disk full, quota).
        """
        before, counts = self.journal, self.journal.counts
        residues, header_bytes = len(block.tokens), len(block.headers)
        assert len(block.lengths) == len(block.header_lengths)
        assert block.lengths.sum() == residues
        assert block.header_lengths.sum() == header_bytes
        assert not len(block.lengths) or block.lengths.min() > 0
        lines = [
            {"source": source} | record._asdict() | {"header": record.header.decode("utf-8", "replace")}
            for record in block.rejected
        ]
        rejected = "".join(json.dumps(line) + "\n" for line in lines).encode()
        journal = replace(
            before,
            counts=StoreCounts(*map(add, counts, (len(block.lengths), residues, header_bytes))),
            num_read=before.num_read + len(block.lengths) + len(block.rejected),
            rejected=dict(Counter(before.rejected) + block.rejected_kinds),
            rejected_bytes=before.rejected_bytes + len(rejected),
            unknown_letters=dict(Counter(before.unknown_letters) + Counter(block.unknown_letters)),
            position=block.end,
            bytes_read=block.bytes_read,
        )
        rows: list[tuple[str, memoryview | bytes]] = [
            ("tokens.bin", _bytes(block.tokens, np.uint8)),
            ("offsets.bin", _bytes(counts.residues + np.cumsum(block.lengths), UINT64)),
            ("digests.bin", _bytes(block.digests, UINT64)),
            ("headers.bin", _bytes(block.headers, np.uint8)),
            ("header_offsets.bin", _bytes(counts.header_bytes + np.cumsum(block.header_lengths), UINT64)),
            (REJECTED, rejected),
        ]
        with self._refusing():
            for name, data in rows:
                self._write(name, data)
        self.journal = journal
        is_late = time.monotonic() >= self._last_commit + COMMIT_S
        if self._is_followed or is_late or self._uncommitted >= COMMIT_BYTES:
            self.commit()

    def end_source(self) -> None:
        """End the current source, so that the next one begins. Everything is on disk when this returns."""
        self.journal = replace(self.journal, source=self.journal.source + 1, position=START, bytes_read=0)
        self.commit()

    def commit(self) -> None:
        """Write everything that was appended to disk, and record it in the journal."""
        with self._refusing():
            for file in self._files.values():
                os.fsync(file.fileno())
            write_journal(self.folder, self.journal)
        self.committed, self._uncommitted, self._last_commit = self.journal, 0, time.monotonic()

    def publish(self, sources: Sequence[str], reading: Sequence[str | int] = ()) -> None:
        """Finish the store: commit everything, then write store.json, with the names of its sources and `reading`."""
        self.commit()
        journal = self.committed
        with closing(self), self._refusing():
            if not journal.rejected:
                self._files.pop(REJECTED).close()
                (self.folder / REJECTED).unlink()
            sizes = journal.file_sizes()
            hashes = {name: self._hashes[name].hexdigest() for name in self._files}
            facts = {
                "format": FORMAT,
                "fingerprint": fingerprint(hashes),
                **journal.counts._asdict(),
                "rejected": dict(sorted(journal.rejected.items())),
                "unknown_letters": dict(sorted(journal.unknown_letters.items())),
                "sources": list(sources),
                "reading": list(reading),
                "key": journal.key,
                "files": {name: {"bytes": sizes[name], "hash": hashes[name]} for name in hashes},
            }
            write_atomic(self.folder / FACTS, facts_text(facts))
            (self.folder / JOURNAL).unlink(missing_ok=True)  # another process may find the store now and remove it

    def close(self) -> None:
        """Close the files, without a commit."""
        for file in self._files.values():
            file.close()

    def roll_back(self) -> None:
        """Close, and cut off what was not committed, to free its space."""
        self.close()
        # By the journal on disk: an interrupt may come just after it was replaced.
        for name, size in (read_journal(self.folder) or self.committed).file_sizes().items():
            with suppress(OSError):
                os.truncate(self.folder / name, size)

    def _write(self, name: str, data: memoryview | bytes) -> None:
        view, file, digest = memoryview(data), self._files[name], self._hashes[name]
        self._uncommitted += len(view)
        for start in range(0, len(view), _PIECE_BYTES):
            piece = view[start : start + _PIECE_BYTES]
            digest.update(piece)
            while piece:  # a write may take only a part
                piece = piece[file.write(piece) :]

    @contextmanager
    def _refusing(self) -> Iterator[None]:
        """Raise what a disk raises as an error that says what to do."""
        try:
            yield
        except OSError as error:
            what = describe_os_error(error) if error.errno in FULL else f"cannot be written ({error.strerror or error})"
            read = self.committed.num_read
            raise ValueError(
                f"{self.folder}: {what}; nothing was published; free space there or choose another folder "
                f"(data.store_dir); the same command {f'continues from record {read + 1}' if read else 'begins again'}"
            ) from error


def _bytes(array: NDArray[Any], dtype: type[np.generic] | str) -> memoryview:
    return np.ascontiguousarray(array, dtype).view(np.uint8).data
