"""Parts: sources that are read ahead by a few processes, in turn, and appended to the store in their order.

In: sources. Out: for each, what to read its records from: the source itself, or the part that was built from it. Kept:
in the folder of the store, for example ``.zymogen-parts/0003``, a store of source 3 alone. An interrupted part is
continued; it is removed once it is appended, or when a build of other sources or settings finds it.
"""

import json
import subprocess
import threading
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from data.sources.block import START, RecordBlock, RejectedRecord, Source, SourcePosition, num_bad
from data.store.builder_process import MessageSender, messages, spawn
from data.store.folder import PARTS, discard_part
from data.store.journal import BuildJournal, read_journal
from data.store.token_store import FACTS, REJECTED, UINT64, TokenStore

_BLOCK_RECORDS = 1 << 16
_BLOCK_RESIDUES = 16 << 20
_REPORT_S = 0.5
_SMALL_BYTES = 1 << 20
"""A source below this size, as stored, is read sooner than a part of it is made and appended."""
_WORTH_BYTES = 32 << 20
"""Bytes, as stored, that are read in the time in which a process starts, which takes a second or two."""


class ReadCounts(NamedTuple):
    """How much of something was read."""

    records: int = 0
    residues: int = 0
    bytes_read: int = 0
    """Stored bytes of the source."""


class BuiltPrefix(NamedTuple):
    """What a part holds from which a build can continue."""

    key: str
    """Key of the build that made it."""
    is_finished: bool
    num_read: int
    num_bad: int


def held(folder: Path) -> BuiltPrefix | None:
    """What the part in `folder` holds; None if it holds nothing, or is too damaged to continue from."""
    with suppress(ValueError):
        if (folder / FACTS).exists():
            facts = TokenStore(folder).facts
            num_read = facts["records"] + sum(facts["rejected"].values())
            return BuiltPrefix(facts["key"], True, num_read, num_bad(facts["rejected"]))
        journal = read_journal(folder)
        if journal is not None and journal.num_read:
            return BuiltPrefix(journal.key, False, journal.num_read, num_bad(journal.rejected))
    return None


def any_held(folder: Path) -> bool:
    """Whether any part of the store in `folder` holds something."""
    return any(held(path) is not None for path in (folder / PARTS).glob("*"))


class BuiltPart:
    """The part of a source, which gives the same records as the source itself.

    The `offset` of its positions is the number of accepted records.
    """

    def __init__(self, folder: Path, source: Source) -> None:
        self.num_bytes = source.num_bytes
        self._store = TokenStore(folder)
        self._facts = self._store.facts

    @property
    def read(self) -> ReadCounts:
        """How much was read of the source: everything."""
        return ReadCounts(self._facts["records"], self._facts["residues"], self.num_bytes or 0)

    def blocks(self, start: SourcePosition = START) -> Iterator[RecordBlock]:
        """Its records from `start` on. They are not mapped: mapped pages would count as memory of this process."""
        num_records = self._facts["records"] + sum(self._facts["rejected"].values())
        rejected = self.rejected(start.records - start.offset)
        waiting = next(rejected, None)
        done, accepted = start
        while done < num_records:
            most = min(_BLOCK_RECORDS, self._facts["records"] - accepted)
            offsets = self._store.read("offsets.bin", UINT64, accepted, most + 1)
            fitting = int(np.searchsorted(offsets, offsets[0] + np.uint64(_BLOCK_RESIDUES), side="right")) - 1
            offsets = offsets[: max(fitting, min(1, most)) + 1]
            stop = done + len(offsets) - 1
            bad: list[RejectedRecord] = []
            while waiting is not None and waiting.record <= stop + 1:
                bad.append(waiting)
                waiting = next(rejected, None)
                stop += 1
                if len(bad) == _BLOCK_RECORDS:
                    stop = bad[-1].record
                    break
            offsets = offsets[: stop - done - len(bad) + 1]
            yield self._block(SourcePosition(stop, accepted + len(offsets) - 1), offsets, bad, num_records)
            done, accepted = stop, accepted + len(offsets) - 1

    def _block(
        self, end: SourcePosition, offsets: NDArray[np.uint64], rejected: list[RejectedRecord], num_records: int
    ) -> RecordBlock:
        count = len(offsets) - 1
        first = end.offset - count
        header_offsets = self._store.read("header_offsets.bin", UINT64, first, count + 1)
        return RecordBlock(
            tokens=self._store.read("tokens.bin", np.uint8, int(offsets[0]), int(offsets[-1] - offsets[0])),
            lengths=np.diff(offsets).astype(np.int64),
            headers=self._store.read(
                "headers.bin", np.uint8, int(header_offsets[0]), int(header_offsets[-1] - header_offsets[0])
            ),
            header_lengths=np.diff(header_offsets).astype(np.int64),
            rejected=tuple(rejected),
            unknown_letters=self._facts["unknown_letters"] if end.records == num_records else {},
            end=end,
            bytes_read=self.num_bytes or 0,
        )

    def rejected(self, skip: int) -> Iterator[RejectedRecord]:
        """The records that were left out, after the first `skip` of them."""
        if not self._facts["rejected"]:
            return
        with (self._store.folder / REJECTED).open("rb") as file:
            for number, line in enumerate(file):
                if number >= skip:
                    said = json.loads(line)
                    header = said["header"].encode()
                    yield RejectedRecord(said["record"], header, said["offset"], said["kind"], said["reason"])


def plan_reading(
    left: range, built: Collection[int], sizes: Sequence[int | None], processes: int, *, first_is_here: bool
) -> tuple[dict[int, Literal["built", "here", "ahead"]], int]:
    """Where each source that is left is read: its part is "built", this process reads it "here", or another "ahead".

    Args:
        left: numbers of the sources, from the current one on.
        built: numbers of the sources whose part is finished.
        sizes: bytes of each source, as stored; None if that is not known.
        processes: the most processes that read at the same time, this one included.
        first_is_here: whether this process reads the first source at once, so that processes that follow the build see
            it grow. This is so unless a part of that source was begun, which another process can continue.

    Returns:
        The place of each source, and how many processes read ahead: no more than there is work for, so that the build
        is never slower than with one process.
    """
    known = {number: _WORTH_BYTES if (size := sizes[number]) is None else size for number in left}
    is_here = {*built, left.start} if first_is_here else {*built}
    ahead = {number for number in left if number not in is_here and known[number] >= _SMALL_BYTES}
    worth = sum(known[number] for number in ahead) // _WORTH_BYTES
    workers = min(processes, len(ahead), worth) if processes > 1 else 0
    return {
        number: "built" if number in built else "ahead" if workers and number in ahead else "here" for number in left
    }, workers


class Prefetcher:
    """The sources of a build from the current one on, some of which other processes read ahead.

    Args:
        folder: folder of the store.
        sources: all sources of the build.
        sizes: bytes of each, as stored; None if that is not known.
        keys: for each source, the key of a store of it alone; a part with another key is removed, as another build
            made it.
        journal: the state of the build.
        processes: the most processes that read at the same time, this one included while it reads. More than one for
            each core besides this one are not started.
        build_part: has a process build, in a folder, the store of the source of this number and report what it has
            read.

    Raises:
        ValueError: the part that was being appended is gone.
    """

    def __init__(
        self,
        folder: Path,
        sources: Sequence[Source],
        sizes: Sequence[int | None],
        keys: Sequence[str],
        journal: BuildJournal,
        processes: int,
        build_part: Callable[[subprocess.Popen[bytes], Path, int], None],
    ) -> None:
        self._parts, self._sources, self._keys, self._build_part = folder / PARTS, sources, keys, build_part
        first, left = journal.source, range(journal.source, len(sources))
        found = {n: of_part for n in left if (of_part := self._held(n)) is not None}
        built = {n for n, of_part in found.items() if of_part.is_finished}
        begun = journal.position != START
        if begun and journal.of_part and first not in built:
            raise ValueError(
                f"{self._part(first)}, which was being appended, is gone; delete {folder}, it is built again"
            )
        if processes > 1:
            from zymogen.processes.resources import resources

            cores = resources().cores
            processes = min(processes, cores + 1) if cores > 1 else 1
        first_is_here = begun or not self._part(first).exists()
        readers, workers = plan_reading(left, built, sizes, processes, first_is_here=first_is_here)
        for path in self._parts.glob("*"):
            if path.name not in {self._part(n).name for n in found}:
                discard_part(path)
        appended = journal.position if journal.of_part else START
        self.num_read = sum(of_part.num_read for of_part in found.values()) - appended.records
        """Number of records that the parts hold and the store does not, rejected ones included."""
        self.num_bad = sum(of_part.num_bad for of_part in found.values())
        """How many of them are bad."""
        if journal.of_part and begun:
            in_store = islice(
                BuiltPart(self._part(first), sources[first]).rejected(0), appended.records - appended.offset
            )
            self.num_bad -= sum(num_bad({record.kind: 1}) for record in in_store)
        self._numbers = [n for n, reader in readers.items() if reader == "ahead"]
        self._here = first if workers and readers.get(first) == "here" else None
        """Number of the source for which this process counts among those that read; else None."""
        self._read = {n: BuiltPart(self._part(n), sources[n]).read for n in built}
        self._processes: set[subprocess.Popen[bytes]] = set()
        self._idle: list[subprocess.Popen[bytes]] = []
        self._failures: list[BaseException] = []
        self._futures: dict[int, Future[None]] = {}
        self._slots, self._starting, self._stopped = threading.Semaphore(processes), threading.Lock(), False
        self._pool = ThreadPoolExecutor(max(1, workers), "reads ahead")

    def __enter__(self) -> "Prefetcher":
        if self._here is not None:
            self._slots.acquire()
        self._futures = {n: self._pool.submit(self._build, n) for n in self._numbers}
        return self

    def __exit__(self, *_: object) -> None:
        with self._starting:
            self._stopped = True
            for process in self._processes:
                process.kill()
        self._slots.release()  # wakes a thread that still waits for the slot of this process
        self._pool.shutdown(cancel_futures=True)
        for process in self._processes:
            with suppress(BrokenPipeError):
                process.communicate()

    def take(self, number: int, waiting: Callable[[], None]) -> tuple[Source | BuiltPart, bool]:
        """What to read a source from, and whether that is a part.

        Args:
            number: number of the source; sources are taken in order.
            waiting: called about twice a second until its part is ready.

        Raises:
            UnusableStoreError: a process raised it.
            ValueError: a process raised it, or died.
        """
        if number in self._futures:
            while not self._futures[number].done():
                self.check()
                waiting()
                wait([self._futures[number]], _REPORT_S)
            self.check()
        of_part = self._held(number)
        if of_part is not None and of_part.is_finished:
            return BuiltPart(self._part(number), self._sources[number]), True
        discard_part(self._part(number))  # begun by a build with more processes
        return self._sources[number], False

    def appended(self, number: int) -> None:
        """Note that the source is in the store, and remove its part."""
        if number == self._here:
            self._here = None
            self._slots.release()
        discard_part(self._part(number))
        if number + 1 == len(self._sources):
            with suppress(OSError):  # it does not exist, or the user has put something into it
                self._parts.rmdir()

    def check(self) -> None:
        """Raise what any of the processes raised."""
        if self._failures:
            raise self._failures[0]

    def behind(self, number: int) -> ReadCounts:
        """How much was read of the sources after this one."""
        found = [read for n, read in self._read.copy().items() if n > number]
        return ReadCounts(*map(sum, zip(*found, strict=True))) if found else ReadCounts()

    def _part(self, number: int) -> Path:
        return self._parts / f"{number:04d}"

    def _held(self, number: int) -> BuiltPrefix | None:
        """What the part of a source holds, if this build made it."""
        found = held(self._part(number))
        return found if found is not None and found.key == self._keys[number] else None

    def _build(self, number: int) -> None:
        with self._slots:
            with self._starting:
                if self._stopped:
                    return
                process = self._idle.pop() if self._idle else spawn()
                self._processes.add(process)
            try:
                self._build_part(process, self._part(number), number)
                for message in messages(process, self._sources[number].name):
                    self._read[number] = ReadCounts(*message["read"])
            except BaseException as failure:
                self._failures.append(failure)
            else:
                self._idle.append(process)


class PartProgress:
    """Sends the progress of a part to the parent, about twice a second."""

    def __init__(self, send: MessageSender) -> None:
        self._send, self._last = send, 0.0

    def __call__(self, records: int, residues: int, bytes_read: int, num_bytes: int | None) -> None:
        """Report the progress of the build."""
        if (now := time.monotonic()) >= self._last + _REPORT_S:
            self._last = now
            self._send(read=ReadCounts(records, residues, bytes_read))
