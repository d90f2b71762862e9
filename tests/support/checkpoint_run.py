"""A tiny run that the checkpoint tests save, damage, kill and continue."""

import ctypes
import errno
import hashlib
import itertools
import json
import math
import os
import random
import struct
from collections.abc import Callable, Container, Set
from contextlib import AbstractContextManager, suppress
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from accelerate import Accelerator
from torch import nn

from data.order.plan import Cursor
from zymogen.trainer.checkpoint import saver
from zymogen.trainer.checkpoint.canonical import canonical
from zymogen.trainer.checkpoint.commit import SavePlan, commit
from zymogen.trainer.checkpoint.files import blocks
from zymogen.trainer.checkpoint.load import VerifiedCheckpoint
from zymogen.trainer.checkpoint.manifest import ENTRIES, TrainerState
from zymogen.trainer.checkpoint.restore import restore as load_into
from zymogen.trainer.checkpoint.writer import BackgroundWrite, StagedState, StagingBuffer
from zymogen.trainer.engine.engine import Engine
from zymogen.trainer.engine.named_state import NamedState, TorchState
from zymogen.trainer.engine.ranks import Ranks
from zymogen.trainer.engine.spans import StoredPiece
from zymogen.trainer.run.directory import RunDirectory
from zymogen.trainer.run.settings import RunSettings

_FINGERPRINTS = {"identity": "a", "schedule": "b", "corpus": "c", "split": "d"}


def ranks_of(rank: int, world_size: int) -> Ranks:
    """A rank of some that form a group, on the host."""
    return Ranks(SimpleNamespace(process_index=rank, num_processes=world_size, device=torch.device("cpu")))


ALONE = ranks_of(0, 1)
"""This process, without others."""


def restore(
    checkpoint: VerifiedCheckpoint,
    state: NamedState,
    frozen: str | None = None,
    known: Set[str] = ENTRIES,
    ranks: Ranks = ALONE,
) -> TrainerState:
    """Load a checkpoint into this process's state."""
    return load_into(checkpoint, state, ranks, frozen, known)


class Tiny(nn.Module):
    """Two layers with tied embedding and head; 11 is divisible by no world size."""

    def __init__(self, seed: int, tie: bool = True, width: int = 6) -> None:
        torch.manual_seed(seed)
        super().__init__()
        self.embed = nn.Embedding(11, width)
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(2))
        self.head = nn.Linear(width, 11)
        if tie:
            self.head.weight = self.embed.weight

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.embed(ids)
        for layer in self.layers:
            x = x + torch.tanh(layer(x))
        return self.head(x)


def build(seed: int = 0, **kwargs: Any) -> tuple[Tiny, torch.optim.AdamW]:
    model = Tiny(seed, **kwargs)
    decayed = [p for p in model.parameters() if p.dim() == 2]
    plain = [p for p in model.parameters() if p.dim() < 2]
    groups = [{"params": decayed, "weight_decay": 0.1}, {"params": plain, "weight_decay": 0.0}]
    return model, torch.optim.AdamW(groups, lr=1e-2)


def train(model: nn.Module, optimizer: torch.optim.Optimizer, first: int, last: int) -> None:
    for step in range(first, last):
        ids = torch.randint(0, 11, (40,), generator=torch.Generator().manual_seed(step))
        nn.functional.cross_entropy(model(ids), ids.flip(0)).backward()
        optimizer.step()
        optimizer.zero_grad()


def trainer_at(step: int) -> TrainerState:
    cursor = Cursor(epoch=1, window=2, bin=step, tokens_before_window=123)
    chain = hashlib.sha256(str(step).encode()).hexdigest()
    return TrainerState(step=step, tokens_seen=1000 * step, cursor=cursor, chain=chain, skipped_steps=1)


def plan_of(folder: Path, step: int, ranks: int = 1, **changes: Any) -> SavePlan:
    fields: dict[str, Any] = {
        "attempt": 1,
        "parent": None,
        "fingerprints": _FINGERPRINTS,
        "world_size": ranks,
        "engine": "single",
        "precision": "no",
        "versions": {"torch": torch.__version__},
    }
    return SavePlan(checkpoints_dir=folder, trainer=trainer_at(step), **{**fields, **changes})


def digest_by_hand(values: torch.Tensor, start: int = 0) -> str:
    """The formula of `checkpoint.digests.digest`, on Python's integers."""
    bits = [struct.unpack("<i", struct.pack("<f", value))[0] for value in values.flatten().tolist()]
    sums = sum(bits), sum(each * index for index, each in enumerate(bits, start))
    return "".join(f"{each % (1 << 64):016x}" for each in sums)


def identity_by_hand(tensors: dict[str, torch.Tensor]) -> str:
    """One hash of named tensors, as docs/checkpoints.md says it."""
    described = {name: [list(tensors[name].shape), digest_by_hand(tensors[name])] for name in sorted(tensors)}
    return hashlib.sha256((json.dumps(described) + "\n").encode()).hexdigest()


def saves_of(folder: Path, state: TorchState, attempt: int = 1) -> saver.CheckpointSaver:
    """The saves of an attempt of the run in this folder, in one process."""
    engine, settings = Engine(Accelerator(cpu=True)), RunSettings(directory=str(folder))
    return saver.CheckpointSaver(RunDirectory(folder), engine, state, attempt, _FINGERPRINTS, settings, None)


def save(folder: Path, state: Any, step: int, **changes: Any) -> Path:
    """Save as this rank, without a thread."""
    rank, ranks = (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)
    staging = changes.pop("staging", None) or StagingBuffer()
    plan = plan_of(folder, step, ranks, **changes)
    commit(plan, staging.stage(state), rank=rank)
    return plan.published


def write_two(folder: Path) -> Path:
    """Commit steps 3 and 4 of a run."""
    model, optimizer = build()
    for step in (3, 4):
        train(model, optimizer, step - 1, step)
        save(folder, TorchState(model, optimizer), step)
    return folder


def everything(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, torch.Tensor]:
    """All parameters, moments and steps, read without the code under test."""
    names = {id(p): n for n, p in model.named_parameters()}
    tensors = {n: p.detach().clone() for n, p in model.named_parameters()}
    for p, cell in optimizer.state.items():
        for key, value in cell.items():
            tensors[f"{key}/{names[id(p)]}"] = torch.as_tensor(value).clone()
    return tensors


def assert_same(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> None:
    assert a.keys() == b.keys()
    for name in a:
        assert torch.equal(a[name], b[name]), name


def shares(state: TorchState, ranks: int) -> list[StagedState]:
    """What each of several ranks would store of a state: every so manieth tensor."""
    whole = StagingBuffer().stage(state)
    return [
        replace(whole, pieces={part: dict(list(own.items())[rank::ranks]) for part, own in whole.pieces.items()})
        for rank in range(ranks)
    ]


Cut = Callable[[dict[str, tuple[int, ...]], int], dict[str, list[tuple[int, int, int]]]]
"""Shapes and ranks -> for each tensor, which rank stores which elements: rank, start, stop."""


def by_rows(shapes: dict[str, tuple[int, ...]], ranks: int) -> dict[str, list[tuple[int, int, int]]]:
    """As FSDP2 cuts."""
    found = {}
    for name, shape in shapes.items():
        size, each = math.prod(shape), -(-shape[0] // ranks) * math.prod(shape[1:])
        found[name] = [(rank, min(rank * each, size), min((rank + 1) * each, size)) for rank in range(ranks)]
    return found


def by_partitions(shapes: dict[str, tuple[int, ...]], ranks: int) -> dict[str, list[tuple[int, int, int]]]:
    """As ZeRO-1 and 2 cut: all tensors one after the other, in equal parts."""
    each, first, found = -(-sum(map(math.prod, shapes.values())) // ranks), 0, {}
    for name, shape in shapes.items():
        size = math.prod(shape)
        bounds = [min(max(rank * each - first, 0), size) for rank in range(ranks + 1)]
        found[name] = [(rank, *bounds[rank : rank + 2]) for rank in range(ranks)]
        first += size
    return found


def by_tensors(shapes: dict[str, tuple[int, ...]], ranks: int) -> dict[str, list[tuple[int, int, int]]]:
    """As DDP deals whole tensors."""
    return {name: [(place % ranks, 0, math.prod(shape))] for place, (name, shape) in enumerate(shapes.items())}


def at_random(shapes: dict[str, tuple[int, ...]], ranks: int) -> dict[str, list[tuple[int, int, int]]]:
    """As no engine cuts: at any element, over ranks in any order."""
    draw, found = random.Random(len(shapes)), {}
    for name, shape in shapes.items():
        size = math.prod(shape)
        inner = sorted(draw.sample(range(1, size), draw.randrange(min(ranks, size)))) if size > 1 else []
        holders = draw.sample(range(ranks), len(inner) + 1)
        found[name] = list(zip(holders, [0, *inner], [*inner, size], strict=True))
    return found


CUTS: dict[str, Cut] = {"rows": by_rows, "partitions": by_partitions, "tensors": by_tensors, "random": at_random}


def write_cut(folder: Path, whole: StagedState, cut: Cut, ranks: int, step: int = 4) -> Path:
    """A checkpoint of tensors that ranks store as a rule cuts them."""
    pieces = [{part: dict[str, StoredPiece]() for part in whole.pieces} for _ in range(ranks)]
    for part, shapes in whole.shapes.items():
        for name, spans in cut(dict(shapes), ranks).items():
            values = whole.pieces[part][name].live
            for rank, start, stop in spans:
                is_whole = stop - start == values.numel()
                stored = values if is_whole else values.reshape(-1)[start:stop]
                pieces[rank][part][name] = whole.pieces[part][name]._replace(start=start, stop=stop, live=stored)
    plan = plan_of(folder, step, ranks)
    for rank in reversed(range(ranks)):
        commit(plan, replace(whole, pieces=pieces[rank]), rank=rank)
    return plan.published


def full_disk(failing: Container[int], rank: int = 0) -> AbstractContextManager[Any]:
    """The saves of these numbers, from 1, find the rank's disk full when it wrote weights and no moments."""
    write, saves = blocks.write_file, itertools.count(1)

    def faulty(folder: Path, path: str, *rest: Any) -> Any:
        entry = write(folder, path, *rest)
        if path == f"model/{rank:05d}.safetensors" and next(saves) in failing:
            raise OSError(errno.ENOSPC, "No space left on device")
        return entry

    return mock.patch.object(blocks, "write_file", faulty)


class _AtOnce(BackgroundWrite[Any]):
    """A save that has ended when training continues, in its thread nevertheless."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        assert self.wait(60)


def written_at_once() -> AbstractContextManager[Any]:
    """Every save has ended before the next step begins, so that a test can say which step learns of it."""
    return mock.patch.object(saver, "BackgroundWrite", _AtOnce)


def clock_of(seconds: float) -> Callable[[], float]:
    """A clock that moves on by so much whenever it is looked at, and not otherwise."""
    times = itertools.count(0.0, seconds)
    return lambda: next(times)


def fill(folder: Path, but: int = 0) -> None:
    """Take all the room there is, except for so many bytes."""
    with (folder / "filler").open("ab", buffering=0) as file:
        for size in (1 << 16, 1 << 10, 1):
            with suppress(OSError):
                while True:
                    file.write(b"\0" * size)
        file.truncate(file.tell() - but)


def mount_small_disk(folder: Path, size: str = "8k") -> None:
    """A tmpfs over the folder, seen by this process alone; exit status 77 without rights."""
    libc = ctypes.CDLL(None, use_errno=True)
    user, group = os.getuid(), os.getgid()
    if libc.unshare(0x10000000 | 0x00020000):  # CLONE_NEWUSER | CLONE_NEWNS
        os._exit(77)
    Path("/proc/self/setgroups").write_text("deny")
    Path("/proc/self/uid_map").write_text(f"0 {user} 1")
    Path("/proc/self/gid_map").write_text(f"0 {group} 1")
    if libc.mount(b"none", str(folder).encode(), b"tmpfs", 0, f"size={size}".encode()):
        os._exit(77)


def files_of(path: Path) -> list[Path]:
    return sorted(p for p in path.rglob("*") if p.is_file())


def rewrite_manifest(path: Path, change: Callable[[dict[str, Any]], object], sign: bool) -> None:
    """Edit the manifest as someone would who knows the format, with or without a new self hash."""
    value = json.loads((path / "manifest.json").read_text())
    change(value)
    if sign:
        value.pop("self_sha256")
        value["self_sha256"] = hashlib.sha256(canonical(value)).hexdigest()
    (path / "manifest.json").write_bytes(canonical(value))


def write_ranks(folder: Path, ranks: int, step: int = 4) -> Path:
    """One checkpoint of a step whose tensors are dealt to several files, as ranks under DDP write them."""
    model, optimizer = build()
    train(model, optimizer, 0, min(step, 5))
    plan = plan_of(folder, step, ranks)
    for rank, own in reversed(list(enumerate(shares(TorchState(model, optimizer), ranks)))):
        commit(plan, own, rank=rank)
    return plan.published


def rewrite_trainer(path: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Another trainer's record, as a writer would have put it there: the manifest vouches for it."""
    value = json.loads((path / "trainer.json").read_text())
    change(value)
    raw = canonical(value)
    (path / "trainer.json").write_bytes(raw)

    def vouch(manifest: dict[str, Any]) -> None:
        (entry,) = (file for file in manifest["files"] if file["path"] == "trainer.json")
        entry.update(size=len(raw), sha256=[hashlib.sha256(raw).hexdigest()])

    rewrite_manifest(path, vouch, sign=True)


def flip(file: Path, offset: int) -> None:
    raw = bytearray(file.read_bytes())
    raw[offset] ^= 16
    file.write_bytes(raw)
