"""What a start or an export reads, in simulated worlds: bytes, files opened, exchanges, and work on the index."""

import os
import threading
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pytest
import torch
from torch import Tensor

from support.checkpoint_run import CUTS, Cut, by_partitions, by_rows, flip, write_cut
from zymogen.processes.errors import StorageError
from zymogen.trainer.checkpoint.canonical import InvalidCheckpointError
from zymogen.trainer.checkpoint.files import blocks
from zymogen.trainer.checkpoint.load import VerifiedCheckpoint, unreadable, verify
from zymogen.trainer.checkpoint.reader import TensorRange, TensorReader, read_tensors
from zymogen.trainer.checkpoint.writer import StagedState
from zymogen.trainer.engine.spans import StoredPiece

T = TypeVar("T")
BLOCK = 4096
LAYERS = 2
NEEDED = 1.1
"""The bound of bytes that are read, as a multiple of those that are needed."""


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blocks, "BLOCK_BYTES", BLOCK)
    monkeypatch.setattr(blocks, "RETRY_S", 0.0)


class ThreadRanks:
    """One rank of several, with what `zymogen.trainer.engine.ranks.Ranks` offers to a reader of checkpoints."""

    def __init__(self, rank: int, world: "_World") -> None:
        self.rank, self._world = rank, world
        self.world_size, self.device = world.size, torch.device("cpu")

    def gather(self, value: Any) -> list[Any]:
        """Every rank's value, on every rank."""
        self._world.slots[self.rank] = value
        self._world.wait()
        found = list(self._world.slots)
        self._world.wait()
        return found

    def send(self, values: Tensor, source: int) -> Tensor:
        """The source's values, on every rank."""
        if self.rank == source:
            self._world.sent = values
        self._world.wait()
        if self.rank != source:
            values.copy_(self._world.sent)
        self._world.wait()
        return values


class _World:
    def __init__(self, size: int) -> None:
        self.size, self.slots, self.sent = size, [None] * size, torch.empty(0)
        self._barrier = threading.Barrier(size, timeout=60)

    def wait(self) -> None:
        self._barrier.wait()

    def abort(self) -> None:
        self._barrier.abort()


def in_world(size: int, work: Callable[[ThreadRanks], T]) -> list[T]:
    """What each rank returned; the first error that is not of another rank's end is raised."""
    world = _World(size)

    def one(rank: int) -> T:
        try:
            return work(ThreadRanks(rank, world))
        except BaseException:
            world.abort()
            raise

    with ThreadPoolExecutor(size) as threads:
        ends = [threads.submit(one, rank) for rank in range(size)]
    errors = [end.exception() for end in ends if end.exception() is not None]
    for error in sorted(errors, key=lambda error: isinstance(error, threading.BrokenBarrierError)):
        assert error is not None
        raise error
    return [end.result() for end in ends]


def tensors() -> dict[str, torch.Tensor]:
    """As in an encoder: matrices and vectors, in an order of modules that is not that of names."""
    draw, found = torch.Generator().manual_seed(0), {"embedding": (33, 64)}
    for layer in range(LAYERS):
        found |= {f"layers.{layer}.{name}": shape for name, shape in (("up", (128, 64)), ("down", (64, 128)))}
        found |= {f"layers.{layer}.norm": (64,), f"layers.{layer}.bias": (128,)}
    return {name: torch.randn(shape, generator=draw) for name, shape in (found | {"head": (64, 64)}).items()}


WHOLE = tensors()


MOMENTS = {f"{key}/{name}": tensor + 1 for key in ("exp_avg", "exp_avg_sq") for name, tensor in WHOLE.items()}
EXPECTED = {"model": WHOLE, "optimizer": MOMENTS}


def staged() -> StagedState:
    return StagedState(
        shapes={part: {name: tuple(tensor.shape) for name, tensor in of.items()} for part, of in EXPECTED.items()},
        pieces={
            part: {name: StoredPiece(name, "param", 0, tensor.numel(), tensor) for name, tensor in of.items()}
            for part, of in EXPECTED.items()
        },
        aliases={},
        steps=dict.fromkeys(WHOLE, 4),
        has_frozen=False,
    )


def saved(folder: Path, cut: Cut, ranks: int) -> Path:
    return write_cut(folder, staged(), cut, ranks)


class Counts:
    """Reads and openings of data files by this process, by path; block hashes count with the reads."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.read, self.opened, self.places = Counter[int](), 0, Counter[tuple[int, int]]()
        preadv, opened, lock = os.preadv, os.open, threading.Lock()

        def counted(descriptor: int, buffers: list[memoryview], offset: int) -> int:
            count = preadv(descriptor, buffers, offset)
            with lock:
                self.read[threading.get_ident()] += count
                self.places[os.fstat(descriptor).st_ino, offset] += 1
            return count

        def tried(path: Any, *rest: Any, **how: Any) -> int:
            with lock:
                self.opened += str(path).endswith(".safetensors")
            return opened(path, *rest, **how)

        monkeypatch.setattr(os, "preadv", counted)
        monkeypatch.setattr(os, "open", tried)


def restored(checkpoint: VerifiedCheckpoint, ranks: ThreadRanks, cut: Cut) -> None:
    """What a rank does at a start in a world that is cut otherwise; its part is compared with what was saved."""
    parts: dict[str, dict[str, TensorRange]] = {}
    for part, of in EXPECTED.items():
        spans = cut({name: tuple(tensor.shape) for name, tensor in of.items()}, ranks.world_size)
        parts[part] = {
            name: ((start, stop), torch.full((stop - start,), float("nan")))
            for name, held in spans.items()
            for rank, start, stop in held
            if rank == ranks.rank
        }
    TensorReader(checkpoint, parts).read_with(ranks)
    for part, wanted in parts.items():
        for name, ((start, stop), into) in wanted.items():
            assert torch.equal(into, EXPECTED[part][name].flatten()[start:stop]), (part, name)


def everywhere(shapes: dict[str, tuple[int, ...]], ranks: int) -> dict[str, list[tuple[int, int, int]]]:
    """As DDP holds a state: each rank all of it."""
    return {name: [(rank, 0, int(np.prod(shape))) for rank in range(ranks)] for name, shape in shapes.items()}


WORLDS = {"FSDP2": by_rows, "ZeRO": by_partitions, "DDP": everywhere}


@pytest.mark.parametrize("files", [1, 4, *(pytest.param(files, marks=pytest.mark.slow) for files in (8, 64))])
@pytest.mark.parametrize("cut", ["rows", "partitions", "tensors"])
def test_an_export_and_a_start_in_any_world_read_a_checkpoint_once(
    tmp_path: Path, cut: str, files: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All ranks together: their bytes are those of the checkpoint, although under DDP each needs all of them."""
    path = saved(tmp_path, CUTS[cut], files)
    checkpoint = verify(path, unreadable)
    with monkeypatch.context() as patch:
        counts = Counts(patch)
        found = read_tensors(checkpoint, "model")
    assert [name for name, tensor in WHOLE.items() if not torch.equal(found[name], tensor)] == []
    assert sum(counts.read.values()) <= NEEDED * sum(entry.size for entry in checkpoint.index["model"].files.values())
    assert set(counts.places.values()) == {1}
    assert counts.opened == len(checkpoint.index["model"].files)
    stored = [file.stat().st_size for file in path.glob("*/*.safetensors")]
    for engine, rule in WORLDS.items():
        for world in (1, 3, 8):
            with monkeypatch.context() as patch:
                counts = Counts(patch)
                in_world(world, lambda ranks, rule=rule: restored(checkpoint, ranks, rule))
            assert sum(counts.read.values()) <= NEEDED * sum(stored), (engine, world)
            if engine == "DDP":
                assert counts.opened <= len(stored) + 2 * world


@pytest.mark.slow
@pytest.mark.parametrize("cut", ["rows", "partitions"])
def test_a_start_in_the_world_that_saved_sends_nothing(
    tmp_path: Path, cut: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each of 64 ranks opens and reads its own files, and tells the others how that ended."""
    path = saved(tmp_path, CUTS[cut], 64)
    monkeypatch.setattr(ThreadRanks, "send", None)
    counts = Counts(monkeypatch)
    checkpoint = verify(path, unreadable)
    in_world(64, lambda ranks: restored(checkpoint, ranks, CUTS[cut]))
    assert counts.opened == len(list(path.glob("*/*.safetensors")))
    largest = max(file.stat().st_size for file in path.glob("optimizer/*.safetensors"))
    assert max(counts.read.values()) <= 2.2 * largest
    assert sum(counts.read.values()) <= NEEDED * sum(file.stat().st_size for file in path.glob("*/*.safetensors"))


@pytest.mark.parametrize("engine", WORLDS)
@pytest.mark.parametrize("error", [InvalidCheckpointError, StorageError])
def test_all_ranks_raise_what_one_of_them_finds(
    tmp_path: Path, engine: str, error: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    path, raised = saved(tmp_path, by_rows, 8), list[str]()
    file = path / "optimizer/00005.safetensors"
    if error is InvalidCheckpointError:
        flip(file, file.stat().st_size - 3)
    else:
        opened = os.open

        def refused(path: Any, *rest: Any) -> int:
            if Path(path) == file:
                raise PermissionError(13, "Permission denied")
            return opened(path, *rest)

        monkeypatch.setattr(os, "open", refused)

    def work(ranks: ThreadRanks) -> None:
        with pytest.raises(error) as caught:
            restored(verify(path, unreadable), ranks, WORLDS[engine])
        raised.append(str(caught.value))

    in_world(3, work)
    assert len(set(raised)) == 1
    assert len(raised) == 3


def test_a_reader_holds_one_block_whatever_the_number_of_files(tmp_path: Path) -> None:
    sizes = set[int]()
    for files in (1, 64):
        reads = TensorReader(
            verify(saved(tmp_path / str(files), by_rows, files), unreadable),
            {"model": {name: ((0, tensor.numel()), torch.empty(tensor.numel())) for name, tensor in WHOLE.items()}},
        )
        reads.read(reads.blocks(needed=True))
        sizes.add(len(reads._reader._buffer))
    assert max(sizes) <= BLOCK
