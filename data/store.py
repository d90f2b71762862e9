"""The token store: a corpus as flat arrays on disk, read through memory maps.

In: FASTA files. Out: a folder that holds

    tokens.bin          uint8     residue ids of all records, one behind the other
    offsets.bin         uint64    (records + 1,) where each record starts in tokens.bin
    clusters.bin        uint64    (records,) hash of each record's cluster
    headers.bin         bytes     header lines
    header_offsets.bin  uint64    (records + 1,)
    store.json          counts, fingerprint, sources; written last

It is built in a temporary folder and renamed when it is whole, so a store that exists is complete.
"""

import hashlib
import json
import os
import shutil
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from data.settings import LetterPolicy

FORMAT = "zymogen.store/1"


@dataclass(frozen=True)
class Store:
    """A token store on disk."""

    folder: Path

    @cached_property
    def facts(self) -> dict[str, Any]:
        """The content of store.json."""
        facts: dict[str, Any] = json.loads((self.folder / "store.json").read_text())
        if facts.get("format") != FORMAT:
            raise ValueError(
                f"{self.folder}: store format is {facts.get('format')!r}, this version reads {FORMAT!r}; "
                "delete the folder, it is built again"
            )
        sizes = {"tokens": facts["residues"], "offsets": 8 * facts["records"] + 8, "clusters": 8 * facts["records"]}
        for name, size in sizes.items():
            found = (self.folder / f"{name}.bin").stat().st_size
            if found != size:
                raise ValueError(
                    f"{self.folder}/{name}.bin has {found} bytes, store.json says {size}: it was cut short; "
                    "delete the folder, it is built again"
                )
        return facts

    @property
    def fingerprint(self) -> str:
        """Hash of the records' residues and lengths in order; the same for one corpus, however it is compressed."""
        return str(self.facts["fingerprint"])

    @property
    def unknown_letters(self) -> dict[str, int]:
        """Letters outside the alphabet that were read as ``<unk>``, with their counts."""
        return dict(self.facts["unknown_letters"])

    @property
    def num_records(self) -> int:
        """Number of records."""
        return int(self.facts["records"])

    @cached_property
    def tokens(self) -> NDArray[np.uint8]:
        """(residues,) memory map of all residue ids."""
        return np.memmap(self.folder / "tokens.bin", np.uint8, "r")

    @cached_property
    def offsets(self) -> NDArray[np.uint64]:
        """(records + 1,) memory map of record starts."""
        return np.memmap(self.folder / "offsets.bin", np.uint64, "r")

    @cached_property
    def clusters(self) -> NDArray[np.uint64]:
        """(records,) memory map of cluster hashes."""
        return np.memmap(self.folder / "clusters.bin", np.uint64, "r")

    def num_residues(self, records: NDArray[np.int64]) -> NDArray[np.int64]:
        """(n,) residues of each of `records`."""
        return (self.offsets[records + 1] - self.offsets[records]).astype(np.int64)

    def residues(self, record: int) -> NDArray[np.uint8]:
        """(length,) residue ids of one record."""
        return self.tokens[int(self.offsets[record]) : int(self.offsets[record + 1])]

    def header(self, record: int) -> str:
        """Header line of one record; bytes that are not UTF-8 are replaced."""
        offsets = np.memmap(self.folder / "header_offsets.bin", np.uint64, "r")
        headers = np.memmap(self.folder / "headers.bin", np.uint8, "r")
        return bytes(headers[int(offsets[record]) : int(offsets[record + 1])]).decode("utf-8", "replace")


def open_or_build(
    paths: Sequence[Path], store_dir: Path, unknown_letters: LetterPolicy, clusters: Path | None
) -> Store:
    """The store of these files: the one that was built before, or a new one.

    A store is found again by the files' paths, sizes and modification times, and by what else decides its bytes.

    Raises:
        ValueError: from the FASTA reader; or a record that `clusters` does not list. Nothing is left behind then.
    """
    stamp = [FORMAT, unknown_letters, *(_stamp(p) for p in (*paths, *([clusters] if clusters else [])))]
    folder = store_dir / hashlib.blake2b(json.dumps(stamp).encode(), digest_size=10).hexdigest()
    if not (folder / "store.json").exists():
        try:
            store_dir.mkdir(parents=True, exist_ok=True)
            building = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=store_dir))
        except OSError as error:
            raise ValueError(f"{store_dir}: {error.strerror}; choose another data.store_dir") from None
        try:
            _build(paths, building, unknown_letters, clusters)
            try:
                building.rename(folder)
            except OSError:
                if not (folder / "store.json").exists():  # else: another run was faster
                    raise
        finally:
            shutil.rmtree(building, ignore_errors=True)
    return Store(folder)


def _stamp(path: Path) -> list[str | int]:
    try:
        status = path.stat()
    except OSError as error:
        raise ValueError(f"{path}: {error.strerror or error}; check data.sources and data.clusters") from None
    return [str(path.resolve()), status.st_size, status.st_mtime_ns]


def _build(paths: Sequence[Path], folder: Path, unknown_letters: LetterPolicy, clusters: Path | None) -> None:
    from data.fasta import records  # here, so that reading a store needs no decompressor

    cluster_of = _cluster_table(clusters) if clusters else None
    token_hash, length_hash = hashlib.blake2b(digest_size=16), hashlib.blake2b(digest_size=16)
    counted: Counter[str] = Counter()
    num_records = num_residues = header_bytes = 0
    names = ("tokens", "offsets", "clusters", "headers", "header_offsets")
    files = {name: (folder / f"{name}.bin").open("wb", buffering=1 << 20) for name in names}
    try:
        files["offsets"].write(bytes(8))
        files["header_offsets"].write(bytes(8))
        for path in paths:
            for record in records(path, unknown_letters, counted):
                residues = record.residues.tobytes()
                num_records += 1
                num_residues += len(residues)
                header_bytes += len(record.header)
                token_hash.update(residues)
                length_hash.update(len(residues).to_bytes(8, "little"))
                files["tokens"].write(residues)
                files["offsets"].write(num_residues.to_bytes(8, "little"))
                files["clusters"].write(_cluster(record.names, residues, cluster_of, path, clusters))
                files["headers"].write(record.header)
                files["header_offsets"].write(header_bytes.to_bytes(8, "little"))
        for file in files.values():
            file.flush()
            os.fsync(file.fileno())
    finally:
        for file in files.values():
            file.close()
    facts = {
        "format": FORMAT,
        "fingerprint": hashlib.blake2b(token_hash.digest() + length_hash.digest(), digest_size=16).hexdigest(),
        "records": num_records,
        "residues": num_residues,
        "sources": [str(p) for p in paths],
        "clusters": str(clusters) if clusters else None,
        "unknown_letters": dict(counted),
    }
    with (folder / "store.json").open("w") as published:
        json.dump(facts, published, indent=1)
        published.flush()
        os.fsync(published.fileno())


def _cluster_table(path: Path) -> dict[bytes, bytes]:
    """Record id -> hash of its cluster's id, from a TSV of (cluster, record id)."""
    table: dict[bytes, bytes] = {}
    if not path.is_file():
        raise ValueError(f"{path} is no file; data.clusters names a TSV of (cluster, record id)")
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            columns = line.rstrip(b"\r\n").split(b"\t")
            if len(columns) != 2 or not all(columns):
                raise ValueError(
                    f"{path}: line {number} has {len(columns)} tab-separated columns; "
                    "it must have two, cluster and record id"
                )
            table[columns[1]] = _digest(columns[0])
    return table


def _cluster(
    names: Sequence[bytes], residues: bytes, table: Mapping[bytes, bytes] | None, path: Path, clusters: Path | None
) -> bytes:
    if table is None:  # no clusters known: at least keep equal sequences on one side of the split
        return _digest(residues)
    for name in names:
        if name in table:
            return table[name]
    raise ValueError(
        f"{path}: record {' or '.join(repr(name.decode('utf-8', 'replace')) for name in names)} is not listed in "
        f"{clusters}; add it to that table (a cluster of its own will do), or leave data.clusters out"
    )


def _digest(content: bytes) -> bytes:
    return hashlib.blake2b(content, digest_size=8).digest()
