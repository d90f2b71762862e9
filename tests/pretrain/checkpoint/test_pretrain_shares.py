"""Ranks deal the verification of a checkpoint: each byte is read once, and all of them use what all found right."""

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from pretrain.checkpoint import CheckpointError, find, newest_valid
from pretrain.checkpoint.blocks import hashes
from pretrain.checkpoint.continued import Check, on_main_with_all
from pretrain.engine.ranks import Ranks
from pretrain.run import stop
from pretrain.run.errors import PeerError, StorageError
from pretrain.run.stop import Stopped
from support.checkpoint_run import flip, write_ranks
from support.forked import forked, status_of

BLOCK = 512


def on_ranks(folder: Path, ranks: int, work: Callable[[Ranks], object]) -> list[object]:
    """What each of several processes, that form a group, returned or raised."""

    def one(rank: int) -> None:
        store = torch.distributed.FileStore(str(folder / "store"), ranks)
        torch.distributed.init_process_group("gloo", store=store, rank=rank, world_size=ranks)
        engine = Ranks(SimpleNamespace(process_index=rank, num_processes=ranks, device=torch.device("cpu")))
        try:
            said: object = work(engine)
        except (Exception, Stopped) as error:
            said = f"{type(error).__name__}: {error}"
        engine.gather(None)
        (folder / f"said-{rank}").write_text(json.dumps(said))

    pids = [forked(lambda rank=rank: one(rank)) for rank in range(ranks)]
    assert [status_of(pid) for pid in pids] == [0] * ranks
    return [json.loads((folder / f"said-{rank}").read_text()) for rank in range(ranks)]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Steps 3 and 4, each in the files of three ranks."""
    monkeypatch.setattr(hashes, "BLOCK_BYTES", BLOCK)
    for step in (3, 4):
        write_ranks(tmp_path / "run", 3, step)
    return tmp_path / "run"


def searched(engine: Ranks, run: Path) -> str:
    """The checkpoint that all ranks use."""

    def work(check: Check) -> str:
        found = newest_valid(run, writer=True, check=check)
        return found.path.name if found else "none"

    return on_main_with_all(engine, work)


def data_bytes(checkpoint: Path) -> int:
    return sum(file.stat().st_size for file in checkpoint.glob("*/*.safetensors"))


@pytest.mark.parametrize("ranks", [2, 3])
def test_each_byte_is_read_by_one_rank(run: Path, tmp_path: Path, ranks: int) -> None:
    def work(engine: Ranks) -> tuple[str, int]:
        preadv, counts = os.preadv, list[int]()

        def counted(descriptor: int, buffers: list[memoryview], offset: int) -> int:
            count = preadv(descriptor, buffers, offset)
            if os.readlink(f"/proc/self/fd/{descriptor}").endswith(".safetensors"):
                counts.append(count)
            return count

        os.preadv = counted
        return searched(engine, run), sum(counts)

    names, read = zip(*on_ranks(tmp_path, ranks, work), strict=True)
    assert set(names) == {"step-000000004"}
    total = data_bytes(run / "step-000000004")
    # A header that is longer than a block is read once more, to be compared with the index.
    assert total <= sum(read) <= total + 6 * 2 * BLOCK
    assert max(read) <= total / ranks + 5 * BLOCK


@pytest.mark.parametrize("part", ["model/00000", "model/00002", "optimizer/00000", "optimizer/00002"])
def test_damage_in_any_share_is_agreed_by_all(
    run: Path, tmp_path: Path, part: str, capfd: pytest.CaptureFixture[str]
) -> None:
    file = run / f"step-000000004/{part}.safetensors"
    flip(file, file.stat().st_size - 2)
    assert on_ranks(tmp_path, 2, lambda engine: searched(engine, run)) == ["step-000000003"] * 2
    assert os.listdir(run / ".quarantine") == ["step-000000004-hash"]
    assert capfd.readouterr().err.count("checkpoint rejected: step-000000004: ") == 1


def test_none_is_whole_for_any_rank(run: Path, tmp_path: Path) -> None:
    for path in find(run):
        flip(path / "optimizer/00002.safetensors", -1)
    first, second = on_ranks(tmp_path, 2, lambda engine: searched(engine, run))
    assert str(first).startswith(f"{CheckpointError.__name__}: {run}: no checkpoint verifies")
    assert str(second).startswith(f"{PeerError.__name__}: rank 0 failed: CheckpointError")
    assert len(os.listdir(run / ".quarantine")) == 2


def test_a_rank_that_sees_another_disk_moves_nothing(run: Path, tmp_path: Path) -> None:
    def work(engine: Ranks) -> str:
        os.chdir(run.parent if engine.is_main else "/")
        return searched(engine, Path("run"))

    first, second = on_ranks(tmp_path, 2, work)
    assert "rank 1: step-000000004: [Errno 2]" in str(first)
    assert str(first).endswith("let all ranks see one file system")
    assert str(second).startswith("PeerError: rank 0 failed: ")
    assert len(find(run)) == 2


def test_a_rank_that_may_not_read_moves_nothing(run: Path, tmp_path: Path) -> None:
    def work(engine: Ranks) -> str:
        if not engine.is_main:  # as a machine would on which the user has another number
            hashes.os.open = refused
        return searched(engine, run)

    first, second = on_ranks(tmp_path, 2, work)
    assert str(first).startswith(f"{StorageError.__name__}: {run / 'step-000000004'}: rank 1: cannot be read: ")
    assert str(second).startswith("PeerError: rank 0 failed: StorageError")
    assert len(find(run)) == 2


def refused(path: Path, flags: int) -> int:
    raise PermissionError(13, "Permission denied", str(path))


@pytest.mark.parametrize("stopped", [0, 1])
def test_a_signal_to_one_rank_stops_all(run: Path, tmp_path: Path, stopped: int) -> None:
    def work(engine: Ranks) -> str:
        with stop.listening(), stop.deferred():
            if engine.rank == stopped:
                os.kill(os.getpid(), signal.SIGTERM)
            return searched(engine, run)

    assert on_ranks(tmp_path, 2, work) == ["Stopped: stopped by SIGTERM"] * 2
    assert len(find(run)) == 2
