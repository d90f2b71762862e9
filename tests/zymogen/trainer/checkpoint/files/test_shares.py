"""Ranks that each need all of a checkpoint deal its blocks: each byte is read once, and all find damage together."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from support.checkpoint_run import build, everything, flip, ranks_of, restore, write_ranks
from support.forked import forked, status_of
from zymogen.processes.errors import StorageError
from zymogen.trainer.checkpoint.digests.digest import identity_of
from zymogen.trainer.checkpoint.files import blocks
from zymogen.trainer.checkpoint.files.blocks import BlockReader
from zymogen.trainer.checkpoint.load import find, newest_valid, open_checkpoint, unreadable
from zymogen.trainer.engine.named_state import TorchState
from zymogen.trainer.engine.ranks import Ranks

BLOCK = 512


def on_ranks(folder: Path, ranks: int, work: Callable[[Ranks], object]) -> list[object]:
    """What each of several processes, that form a group, returned or raised."""

    def one(rank: int) -> None:
        store = torch.distributed.FileStore(str(folder / "store"), ranks)
        torch.distributed.init_process_group("gloo", store=store, rank=rank, world_size=ranks)
        engine = ranks_of(rank, ranks)
        try:
            said: object = work(engine)
        except Exception as error:
            said = f"{type(error).__name__}: {error}"
        engine.gather(None)
        (folder / f"said-{rank}").write_text(json.dumps(said))

    pids = [forked(lambda rank=rank: one(rank)) for rank in range(ranks)]
    assert [status_of(pid) for pid in pids] == [0] * ranks
    return [json.loads((folder / f"said-{rank}").read_text()) for rank in range(ranks)]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Steps 3 and 4, each in the files of three ranks."""
    monkeypatch.setattr(blocks, "BLOCK_BYTES", BLOCK)
    monkeypatch.setattr(blocks, "RETRY_S", 0.0)
    for step in (3, 4):
        write_ranks(tmp_path / "run", 3, step)
    return tmp_path / "run"


def restored(engine: Ranks, run: Path) -> str:
    """The weights and moments that a rank under DDP has after a start, as one hash; they are compared with the file."""
    model, optimizer = build(seed=7 + engine.rank)
    found = newest_valid(run, writer=False, check=unreadable) if engine.is_main else None
    path, sha256 = engine.on_main(lambda: (found.path, found.manifest.self_sha256) if found else None)
    restore(open_checkpoint(path, sha256), TorchState(model, optimizer), ranks=engine)
    return identity_of(everything(model, optimizer).items())


@pytest.mark.parametrize("part", ["model/00000", "model/00002", "optimizer/00000", "optimizer/00002"])
def test_damage_in_any_share_is_agreed_by_all(run: Path, tmp_path: Path, part: str) -> None:
    file = run / f"step-000000004/{part}.safetensors"
    flip(file, file.stat().st_size - 2)
    said = on_ranks(tmp_path, 2, lambda engine: restored(engine, run))
    assert said == [said[0]] * 2
    assert str(said[0]).startswith(f"InvalidCheckpointError: {part}.safetensors")
    assert "sha256" in str(said[0])


def test_a_rank_that_sees_another_disk_is_named(run: Path, tmp_path: Path) -> None:
    def work(engine: Ranks) -> str:
        if not engine.is_main:  # as where a disk is of one machine alone
            BlockReader._filled = refused(FileNotFoundError(2, "No such file"))
        return restored(engine, run)

    assert all("No such file" in str(said) for said in on_ranks(tmp_path, 2, work))


def test_a_rank_that_may_not_read_moves_nothing(run: Path, tmp_path: Path) -> None:
    def work(engine: Ranks) -> str:
        if not engine.is_main:  # as a machine would on which the user has another number
            BlockReader._filled = refused(PermissionError(13, "Permission denied"))
        return restored(engine, run)

    for said in on_ranks(tmp_path, 2, work):
        assert str(said).startswith(f"{StorageError.__name__}: {run / 'step-000000004'}: rank 1: cannot be read: ")
    assert len(find(run)) == 2


def refused(error: OSError) -> Callable[..., str]:
    def read(*_: object) -> str:
        raise error

    return read
