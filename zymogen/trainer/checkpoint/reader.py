"""Reading: ranges of a checkpoint's tensors, filled file by file, each block hashed in the buffer that is copied from.

In: a checkpoint, and which elements of which tensors go where. Out: those elements, or an error. Kept: nothing.

One process reads the blocks that hold what it needs, each once, in the order of the files. Several ranks do the same
where together they read little more than the checkpoint has, as where each needs its own part and continues in the
world that saved it. Otherwise they deal all blocks, so that each is read by one rank, which sends it to the others: a
start reads a checkpoint once, whatever the engine, the world that saved it and the world that reads it. A rank has one
block of its own in memory and one that it receives, whatever the number of files.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from zymogen.processes.errors import CheckpointError, StorageError
from zymogen.trainer.checkpoint.canonical import InvalidCheckpointError
from zymogen.trainer.checkpoint.files import blocks
from zymogen.trainer.checkpoint.files.blocks import BlockReader, block_bytes
from zymogen.trainer.checkpoint.files.index import TensorIndex
from zymogen.trainer.checkpoint.load import VerifiedCheckpoint, storage_errors
from zymogen.trainer.engine.ranks import Ranks
from zymogen.trainer.engine.spans import Span

MOST_READ = 1.1
"""Ranks read for themselves up to this many times the bytes of the data files, all together."""


TensorRange = tuple[Span, Tensor]
"""A range ``[start, stop)`` of a flattened tensor, and where it goes: ``(stop - start,)``, on any device."""


class FileBlock(NamedTuple):
    """One block of a data file."""

    part: str
    file: int
    """Number of the rank that wrote it."""
    number: int
    num_bytes: int


class _Part:
    """What is wanted of one part."""

    def __init__(self, index: TensorIndex, wanted: Mapping[str, TensorRange]) -> None:
        self.index = index
        self._into = [wanted[name][1] if name in wanted else None for name in index.names]
        spans = [wanted[name][0] if name in wanted else (0, 0) for name in index.names]
        self._starts, self._stops = np.array(spans, np.int64).reshape(-1, 2).T

    def numbers(self, file: int) -> list[int]:
        """The blocks of a file that hold what is wanted."""
        found = self.index.pieces(file)
        low = np.maximum(found.starts, self._starts[found.tensors])
        high = np.minimum(found.stops, self._stops[found.tensors])
        begins = found.offsets + 4 * (low - found.starts)
        ends = begins + 4 * (high - low)
        marks = np.zeros(len(self.index.files[file].sha256) + 1, np.int64)
        some = low < high
        np.add.at(marks, begins[some] // blocks.BLOCK_BYTES, 1)
        np.add.at(marks, (ends[some] - 1) // blocks.BLOCK_BYTES + 1, -1)
        if some.any():  # the header, too
            marks[[0, (found.offsets[0] - 1) // blocks.BLOCK_BYTES + 1]] += [1, -1]
        return np.flatnonzero(np.cumsum(marks)).tolist()

    @torch.no_grad()
    def place(self, file: int, number: int, content: Tensor) -> None:
        """Copy what is wanted of a block to where it goes."""
        found = self.index.pieces(file)
        # The element of each tensor that the block would begin with, if the tensor had more elements before its piece.
        first = found.starts + (number * blocks.BLOCK_BYTES - found.offsets) // 4
        low = np.maximum(np.maximum(found.starts, self._starts[found.tensors]), first)
        high = np.minimum(np.minimum(found.stops, self._stops[found.tensors]), first + len(content) // 4)
        values = content.view(torch.float32)
        for at in np.flatnonzero(low < high).tolist():
            into, offset = self._into[found.tensors[at]], self._starts[found.tensors[at]]
            assert into is not None, "a range that is wanted has a place"
            into[low[at] - offset : high[at] - offset].copy_(values[low[at] - first[at] : high[at] - first[at]])


class TensorReader:
    """What this process needs of a checkpoint.

    Args:
        checkpoint: whose data files are read.
        wanted: part -> stored name -> the range that is needed; parts that are left out are not read.
    """

    def __init__(self, checkpoint: VerifiedCheckpoint, wanted: Mapping[str, Mapping[str, TensorRange]]) -> None:
        self._checkpoint = checkpoint
        self._parts = {part: _Part(checkpoint.index[part], of_part) for part, of_part in wanted.items()}
        self._reader = BlockReader(checkpoint.path)

    def blocks(self, *, needed: bool) -> list[FileBlock]:
        """The blocks of these parts, in order; only those that hold some of it if `needed`."""
        return [
            FileBlock(part, file, number, block_bytes(entry.size, number))
            for part, of_part in self._parts.items()
            for file, entry in sorted(of_part.index.files.items())
            for number in (of_part.numbers(file) if needed else range(len(entry.sha256)))
        ]

    def shares(self, ranks: int) -> list[list[FileBlock]]:
        """All blocks of these parts, dealt to ranks: those of a rank follow each other, as many bytes for each."""
        dealt: list[list[FileBlock]] = [[] for _ in range(ranks)]
        whole = self.num_bytes(every := self.blocks(needed=False))
        done = 0
        for block in every:
            dealt[done * ranks // whole].append(block)
            done += block.num_bytes
        return dealt

    def num_bytes(self, chosen: Iterable[FileBlock]) -> int:
        """Bytes of some blocks."""
        return sum(block.num_bytes for block in chosen)

    def read(self, chosen: Iterable[FileBlock]) -> None:
        """Read some blocks, and take what is needed of them.

        Raises:
            InvalidCheckpointError: bytes are not what was written.
            OSError: they cannot be read.
        """
        for block in chosen:
            self.place(block, self.content(block))

    def content(self, block: FileBlock) -> Tensor:
        """The bytes of a block, until the next one is read; its hash is right, and so is what it has of a header."""
        index = self._parts[block.part].index
        found = self._reader.read(index.files[block.file], block.number)
        index.require_header(block.file, block.number, found)
        return found

    def place(self, block: FileBlock, content: Tensor) -> None:
        """Take what is needed of the bytes of a block."""
        self._parts[block.part].place(block.file, block.number, content)

    def read_with(self, ranks: Ranks) -> None:
        """Read what every rank needs; collective.

        Raises:
            InvalidCheckpointError: on every rank, bytes that some rank read are not what was written.
            StorageError: on every rank, some rank could not read.
        """
        own, every = self.blocks(needed=True), self.blocks(needed=False)
        if sum(ranks.gather(self.num_bytes(own))) <= MOST_READ * self.num_bytes(every):
            self._agree(ranks, own, moves=True)
            return
        shares = self.shares(ranks.world_size)
        for turn in range(max(map(len, shares))):
            of_turn = [share[turn] if turn < len(share) else None for share in shares]
            mine = self._agree(ranks, of_turn[ranks.rank : ranks.rank + 1], moves=False)
            for rank, block in enumerate(of_turn):
                if block is not None:
                    self.place(block, self._sent(ranks, rank, block, mine))

    def _agree(self, ranks: Ranks, chosen: Sequence[FileBlock | None], *, moves: bool) -> Tensor | None:
        """Read blocks on each rank, and raise on all what any of them found; the bytes of the last one."""
        content: Tensor | None = None
        verdict: tuple[bool, str, str] | None = None  # whether bytes are wrong, or else the storage; both in words
        try:
            with storage_errors(self._checkpoint.path):
                for block in chosen:
                    content = None if block is None else self.content(block)
                    if moves and block is not None and content is not None:
                        self.place(block, content)
        except InvalidCheckpointError as error:
            verdict = True, error.reason, str(error)
        except CheckpointError as error:
            verdict = False, error.reason, error.remedy
        for rank, found in enumerate(ranks.gather(verdict)):
            if found and found[0]:
                raise InvalidCheckpointError(*found[1:])
            if found:
                raise StorageError(self._checkpoint.path, f"rank {rank}: {found[1]}", found[2])
        return content

    def _sent(self, ranks: Ranks, rank: int, block: FileBlock, mine: Tensor | None) -> Tensor:
        """The bytes of a block that a rank has read, on every rank."""
        if rank == ranks.rank and mine is not None:
            return ranks.send(mine.to(ranks.device), rank)
        return ranks.send(torch.empty(block.num_bytes, dtype=torch.uint8, device=ranks.device), rank)


def read_tensors(checkpoint: VerifiedCheckpoint, part: str, names: Collection[str] | None = None) -> dict[str, Tensor]:
    """Whole tensors of one part, float32 on the host, in the order of their names.

    Args:
        checkpoint: whose.
        part: `model` or `optimizer`.
        names: which; None: all.

    Raises:
        InvalidCheckpointError: bytes are not what was written.
        OSError: they cannot be read.
    """
    shapes = checkpoint.index[part].shapes
    whole = {name: torch.empty(shape) for name, shape in shapes.items() if names is None or name in names}
    wanted = {name: ((0, tensor.numel()), tensor.view(-1)) for name, tensor in whole.items()}
    reads = TensorReader(checkpoint, {part: wanted})
    reads.read(reads.blocks(needed=True))
    return whole
