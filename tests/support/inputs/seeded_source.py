"""A source of generated records, which can be slow, break off, or hold bad records; and how to work with its stores."""

import os
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from data.sources.block import START, RecordBlock, RejectedRecord, SourcePosition
from data.store.token_store import LOCK
from zymogen import keyed_random

BYTES = 1 << 20
"""What a record counts as, as stored: so many that a source is worth a process of its own."""


@dataclass(frozen=True)
class SeededSource:
    """`num_records` records of 1 to 400 residues, the same on every reading."""

    name: str
    seed: int = 0
    num_records: int = 500
    block_records: int = 100
    bad_every: int = 0
    """Record k of so many is bad: 7 makes records 7, 14, ... bad."""
    bad_until: int = 1 << 40
    """Records from this on are good."""
    gate: Path | None = None
    """Reading stops before record `gate_at` until this file is there."""
    gate_at: int = 0
    breaks_at: int = 1 << 40
    """Reading fails behind so many records, until `mended` is there."""
    mended: Path | None = None
    log: Path | None = None
    """Gets a line for each time that reading begins."""
    pids: Path | None = None
    """Gets the process that reads, whenever reading begins."""

    @property
    def num_bytes(self) -> int | None:
        return BYTES * self.num_records

    def stamp(self) -> list[str | int]:
        return [self.name, self.seed, self.num_records]

    def blocks(self, start: SourcePosition = START) -> Iterator[RecordBlock]:
        assert start.offset == 1000 * start.records
        if self.log is not None:
            with self.log.open("a") as file:
                file.write(f"{start.records}\n")
        if self.pids is not None:
            with self.pids.open("a") as file:
                file.write(f"{os.getpid()}\n")
        for first in range(start.records, self.num_records, self.block_records):
            stop = min(first + self.block_records, self.num_records)
            while self.gate is not None and stop > self.gate_at and not self.gate.exists():
                time.sleep(0.01)
            if stop > self.breaks_at and not (self.mended and self.mended.exists()):
                raise ValueError(f"{self.name}: the connection broke after {first} records")
            yield self.block(first, stop)

    def block(self, first: int, stop: int) -> RecordBlock:
        numbers = np.arange(first, stop)
        bad = (numbers + 1) % self.bad_every == 0 if self.bad_every else np.zeros(len(numbers), np.bool_)
        bad &= numbers < self.bad_until
        keys = keyed_random.hashes(keyed_random.key(self.seed), numbers[~bad])
        lengths = 1 + (keys % np.uint64(400)).astype(np.int64)
        of_residues = np.repeat(keys, lengths)
        places = np.arange(len(of_residues)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
        tokens = (4 + keyed_random.hashes(of_residues, places) % np.uint64(20)).astype(np.uint8)
        headers = [f"{self.name}|{n} protein".encode() + b"\xff" for n in numbers[~bad].tolist()]
        return RecordBlock(
            tokens=tokens,
            lengths=lengths,
            headers=np.frombuffer(b"".join(headers), np.uint8),
            header_lengths=np.array([len(header) for header in headers], np.int64),
            rejected=tuple(
                RejectedRecord(
                    n + 1, f"bad {n}".encode() + b"\xfe", 1000 * n, "no sequence", "has no sequence; fill it"
                )
                for n in numbers[bad].tolist()
            ),
            unknown_letters={"'!'": int(np.count_nonzero(lengths % 2)), "'?'": 1},
            end=SourcePosition(stop, 1000 * stop),
            bytes_read=BYTES * stop,
        )


@dataclass(frozen=True)
class BulkSource:
    """Blocks of 4 million residues, as quick as memory: for what size alone shows."""

    num_blocks: int
    name: str = "bulk"

    @property
    def num_bytes(self) -> int | None:
        return self.num_blocks << 22

    def stamp(self) -> list[str | int]:
        return [self.name, self.num_blocks]

    def blocks(self, start: SourcePosition = START) -> Iterator[RecordBlock]:
        records = 1 << 14
        for number in range(start.records // records, self.num_blocks):
            yield RecordBlock(
                tokens=np.full(1 << 22, 4 + number % 20, np.uint8),
                lengths=np.full(records, 256),
                headers=np.full(16 * records, ord("h"), np.uint8),
                header_lengths=np.full(records, 16),
                end=SourcePosition((number + 1) * records),
                bytes_read=(number + 1) << 22,
            )


def contents(folder: Path, names: Iterable[str] | None = None) -> dict[str, bytes]:
    """The files of a folder, of these names or all but the lock."""
    found = {path.name: path for path in folder.iterdir() if path.is_file() and path.name != LOCK}
    return {name: path.read_bytes() for name, path in found.items() if names is None or name in names}


def until(holds: Callable[[], bool]) -> None:
    end = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.01)
