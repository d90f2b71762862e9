"""The token store: a corpus as flat arrays on disk, read through memory maps.

In: a folder that `data.store.build` wrote. Out: residues, digests and headers by record. Kept: memory maps. The folder
holds

    tokens.bin          uint8     residue ids of all records, concatenated
    offsets.bin         uint64    (records + 1,) where each record starts in tokens.bin
    digests.bin         uint64    (records,) digest of each record (`data.sources.content_digest`)
    headers.bin         bytes     header lines of all records, concatenated
    header_offsets.bin  uint64    (records + 1,) where each header starts in headers.bin
    rejected.jsonl      if records were left out: one line for each
    store.json          counts, fingerprint, sources, size and hash of every file; written last

and, beside them, what was derived from the store (clusters, splits) unless it is kept elsewhere (`data.store.derived`).
A folder without store.json is being built, or its build was interrupted; `data.store.journal` describes its state.
"""

import hashlib
import json
import os
import time
from collections.abc import Mapping
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

FORMAT = "zymogen.store/3"
FACTS, REJECTED, LOCK = "store.json", "rejected.jsonl", ".zymogen-build.lock"

UINT64 = "<u8"
"""The type of integers in these files: little-endian on every machine."""

RESTORE = "restore it from a copy, or, if its sources are still there, delete the folder and build it again"
"""What to do about a damaged store. A run does not build it again if the recipe names it by its folder."""
PATIENCE_S = 60.0
"""How long a file that another machine writes may look shorter here than it is: the longest time for which NFS clients
trust the size that they saw last (acregmax in nfs(5))."""
POLL_S = 0.1

_CHUNK_BYTES = 8 << 20

TABLES = ("offsets.bin", "digests.bin")
"""Files, 16 bytes a record, that a run compares with their hashes when it begins. With wrong offsets a record would be
another protein; with a wrong digest it could both train and validate."""


class StoreCounts(NamedTuple):
    """What a store holds."""

    records: int = 0
    residues: int = 0
    header_bytes: int = 0

    def file_sizes(self) -> dict[str, int]:
        """Bytes of each file of arrays."""
        return {
            "tokens.bin": self.residues,
            "offsets.bin": 8 * self.records + 8,
            "digests.bin": 8 * self.records,
            "headers.bin": self.header_bytes,
            "header_offsets.bin": 8 * self.records + 8,
        }


class TokenStore:
    """A finished token store.

    Args:
        folder: folder of the store.
        store_dir: data.store_dir, where derived files are kept if `folder` cannot be written to (`data.store.derived`).
    """

    is_growing = False
    """Whether it may still be written; if so, it has no facts, fingerprint or number of records yet."""
    _patience_s = 0.0
    """How long to wait for files that look shorter than store.json says."""

    def __init__(self, folder: Path, store_dir: Path | None = None) -> None:
        self.folder, self.store_dir = folder, store_dir
        self._maps: dict[str, NDArray[Any]] = {}

    @cached_property
    def facts(self) -> dict[str, Any]:
        """The content of store.json.

        Raises:
            ValueError: the folder holds no finished store, or one of another version; store.json is damaged; a file is
                missing or has another size than it had.
        """
        facts = read_facts(self.folder)
        end = time.monotonic() + self._patience_s
        for name, of_file in facts["files"].items():
            path, size = self.folder / name, of_file["bytes"]
            while (found := _size(path)) < size and time.monotonic() < end:
                time.sleep(POLL_S)
            if found != size:
                raise ValueError(
                    f"{path} has {found} bytes, {FACTS} says {size}: "
                    f"it was {'cut short' if found < size else 'written to'}; {RESTORE}"
                )
        return facts

    @cached_property
    def counts(self) -> StoreCounts:
        """How many records, residues and header bytes can be read."""
        return StoreCounts(*(int(self.facts[name]) for name in StoreCounts._fields))

    @property
    def fingerprint(self) -> str:
        """Hash of the records' digests and lengths in order, so of the sequences, not of their names or files."""
        return str(self.facts["fingerprint"])

    @property
    def rejected(self) -> dict[str, int]:
        """How many records of the sources were left out, by kind (`data.sources.block.Kind`)."""
        return dict(self.facts["rejected"])

    @property
    def unknown_letters(self) -> dict[str, int]:
        """Letters outside the alphabet that were read as ``<unk>``, with their counts."""
        return dict(self.facts["unknown_letters"])

    @property
    def num_records(self) -> int:
        """Number of records."""
        return int(self.facts["records"])

    def wait(self, num_records: int) -> int:
        """All records. A store that is still written waits for `num_records`, and returns these, or all if fewer."""
        return self.num_records

    @property
    def total_residues(self) -> int:
        """Number of residues of all records."""
        return int(self.facts["residues"])

    @property
    def tokens(self) -> NDArray[np.uint8]:
        """(residues,) memory map of all residue ids."""
        return self._map("tokens.bin", np.uint8, self.counts.residues)

    @property
    def offsets(self) -> NDArray[np.uint64]:
        """(records + 1,) memory map of record starts."""
        return self._map("offsets.bin", UINT64, self.counts.records + 1)

    @property
    def digests(self) -> NDArray[np.uint64]:
        """(records,) memory map of content digests."""
        return self._map("digests.bin", UINT64, self.counts.records)

    def num_residues(self, records: NDArray[np.int64]) -> NDArray[np.int64]:
        """(n,) number of residues of each of `records`."""
        offsets = self.offsets
        return (offsets[records + 1] - offsets[records]).astype(np.int64)

    def residues(self, record: int) -> NDArray[np.uint8]:
        """(length,) residue ids of one record."""
        offsets = self.offsets
        return self.tokens[int(offsets[record]) : int(offsets[record + 1])]

    def header(self, record: int) -> str:
        """Header line of one record; bytes that are not UTF-8 are replaced."""
        if not 0 <= record < self.counts.records:
            raise IndexError(f"record {record} of {self.folder}, which has {self.counts.records}")
        return self.headers(record, record + 1)[0].decode("utf-8", "replace")

    def headers(self, start: int, stop: int) -> list[bytes]:
        """Header lines of the records [start, stop), as they stood in the source."""
        counts = self.counts
        ends = self._map("header_offsets.bin", UINT64, counts.records + 1)[start : stop + 1].tolist()
        if len(ends) < 2:
            return []
        text = self._map("headers.bin", np.uint8, counts.header_bytes)[ends[0] : ends[-1]].tobytes()
        return [text[a - ends[0] : b - ends[0]] for a, b in pairwise(ends)]

    def _map(self, name: str, dtype: type[np.generic] | str, count: int) -> NDArray[Any]:
        held = self._maps.get(name)
        if held is None or len(held) != count:
            # A plain array, as slicing a memmap takes three times as long; and an empty file cannot be mapped.
            path = self.folder / name
            held = np.asarray(np.memmap(path, dtype, "r", shape=(count,))) if count else np.empty(0, dtype)
            self._maps[name] = held
        return held

    def read(self, name: str, dtype: type[np.generic] | str, first: int, count: int) -> NDArray[Any]:
        """Up to `count` items of a file, not mapped: the pages of a map would count as memory of this process."""
        return np.fromfile(self.folder / name, dtype, count, offset=first * np.dtype(dtype).itemsize)

    def verify(self, *names: str) -> None:
        """Compare the hash of every file, or of those of `names`, with that in store.json, in bounded memory.

        Raises:
            ValueError: a file differs; the message names it.
        """
        facts = type(self)(self.folder).facts  # not from the cache
        for name in names or facts["files"]:
            of_file, path = facts["files"][name], self.folder / name
            with path.open("rb", buffering=0) as file:
                found = hash_of(file).hexdigest()
            if found != of_file["hash"]:
                raise ValueError(
                    f"{path} differs from what was written: its hash is {found}, {FACTS} says {of_file['hash']}; "
                    f"check the disk, and {RESTORE}"
                )
        ends = {"offsets.bin": (facts["residues"], 1), "header_offsets.bin": (facts["header_bytes"], 0)}
        for name in ends.keys() & (names or ends):
            end, least = ends[name]
            _require_rising(self.folder / name, end, least)


def facts_text(facts: Mapping[str, Any]) -> str:
    """The content of store.json: `facts`, and a hash of them."""
    content = json.dumps(facts, indent=1)
    return json.dumps({**facts, "hash": new_hash(content.encode()).hexdigest()}, indent=1) + "\n"


def is_of_a_store(raw: bytes) -> bool:
    """Whether this is the content of a store.json or progress.json of ours, of any version, even a damaged one."""
    return b"zymogen.store/" in raw[:64] or (b'"fingerprint"' in raw and b'"header_offsets.bin"' in raw)


def read_facts(folder: Path) -> dict[str, Any]:
    """The content of a finished store's store.json; the other files are not checked.

    Raises:
        ValueError: the folder holds no finished store, or one of another version; store.json is damaged.
    """
    path = folder / FACTS
    try:
        raw = path.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        raise ValueError(
            f"{folder} holds no finished token store (no {FACTS}); build one with `python -m data build`"
        ) from None
    if not is_of_a_store(raw):
        raise ValueError(f"{path} is of another program, or damaged beyond reading; choose another folder")
    try:
        facts = json.loads(raw)
        found = facts.get("format")
    except (ValueError, AttributeError):
        raise ValueError(f"{path} is damaged: it is no JSON; {RESTORE}") from None
    if found != FORMAT:
        raise ValueError(
            f"{path}: store format is {found!r}, this version reads {FORMAT!r}; use the version that wrote it, or, if "
            "its sources are still there, delete the folder and build it again"
        )
    if facts_text({name: value for name, value in facts.items() if name != "hash"}).encode() != raw:
        raise ValueError(f"{path} differs from what was written; {RESTORE}")
    if others := sorted(facts["files"].keys() - {*StoreCounts().file_sizes(), REJECTED}):
        raise ValueError(f"{path} lists the file {others[0]!r}, which no token store has; do not use this store")
    return dict(facts)


def _size(path: Path) -> int:
    """Bytes of a file of a store."""
    try:
        with path.open("rb") as file:  # opened each time, as NFS asks for the size when a file is opened
            return os.fstat(file.fileno()).st_size
    except FileNotFoundError:
        raise ValueError(f"{path} is missing; {RESTORE}") from None


def new_hash(content: bytes = b"") -> "hashlib.blake2b":
    """The hash that is used for files and fingerprints of a store: BLAKE2b of 16 bytes."""
    return hashlib.blake2b(content, digest_size=16)


def hash_of(
    file: IO[bytes], num_bytes: int | None = None, digest: "hashlib.blake2b | None" = None
) -> "hashlib.blake2b":
    """Hash of the next `num_bytes` of an unbuffered file, or of all that is left; `digest`, if given, is continued."""
    digest, buffer = digest or new_hash(), memoryview(bytearray(_CHUNK_BYTES))
    while num_bytes is None or num_bytes > 0:
        read = file.readinto(buffer[: min(num_bytes or _CHUNK_BYTES, _CHUNK_BYTES)])  # type: ignore[attr-defined]
        if not read:
            break
        digest.update(buffer[:read])
        num_bytes = None if num_bytes is None else num_bytes - read
    return digest


def fingerprint(files: Mapping[str, str]) -> str:
    """The fingerprint of a store, from the hash of each file.

    digests.bin holds the digests, and offsets.bin, which starts at 0, depends on the lengths alone.
    """
    return new_hash(f"{files['digests.bin']} {files['offsets.bin']}".encode()).hexdigest()


def _require_rising(path: Path, end: int, least: int) -> None:
    """Raise unless the offsets in a file begin at 0, rise by at least `least`, and end at `end`."""
    last = np.zeros(1, np.uint64)
    done = 0
    with path.open("rb") as file:
        while len(block := np.fromfile(file, UINT64, _CHUNK_BYTES // 8)):
            seen = np.concatenate([last, block]) if done else block
            wrong = np.flatnonzero(seen[1:] < seen[:-1] + np.uint64(least))
            if (not done and block[0]) or len(wrong):
                entry = 0 if not done and block[0] else done + int(wrong[0]) + (not done)
                raise ValueError(f"{path} does not rise from 0, at entry {entry}; {RESTORE}")
            last, done = block[-1:], done + len(block)
    if int(last[0]) != end:
        raise ValueError(f"{path} ends at {int(last[0])}, {FACTS} says {end}; {RESTORE}")
