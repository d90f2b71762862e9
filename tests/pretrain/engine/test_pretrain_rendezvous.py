"""Where ranks meet when a launcher starts them again: on one node by its count, on several whatever each one counts."""

import os
import socket
import sys
import time
from collections.abc import Mapping
from contextlib import ExitStack
from datetime import timedelta
from pathlib import Path

import psutil
import pytest
import torch
import torch.distributed as dist
from torch.distributed.rendezvous import rendezvous

from pretrain.engine.rendezvous import INIT_METHOD
from support.launching import exits, started, until

LIMIT = timedelta(seconds=8)


@pytest.fixture
def store() -> dist.TCPStore:
    """The launcher's, which outlives the processes of a start."""
    return dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False, timeout=LIMIT)


def variables(store: dist.TCPStore, rank: int, **more: str) -> dict[str, str]:
    place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(store.port), "TORCHELASTIC_USE_AGENT_STORE": "True"}
    return {**place, "RANK": str(rank), "WORLD_SIZE": "2", **more}


def meet(variables: Mapping[str, str], late_s: float) -> None:
    """What a rank does that begins late, adds with the other and ends without a word."""
    os.environ.update(variables)
    time.sleep(late_s)
    dist.init_process_group("gloo", init_method=INIT_METHOD, timeout=LIMIT)
    total = torch.tensor([1.0 + dist.get_rank()])
    dist.all_reduce(total)
    os._exit(0 if total.item() == 3 else 2)


@pytest.mark.slow
@pytest.mark.parametrize("late", [0, 1])
def test_ranks_of_nodes_that_count_otherwise_meet(store: dist.TCPStore, late: int) -> None:
    """The second start has what the first one left in the store; the third is counted by neither."""
    for counts in [("0", "0"), ("1", "0"), ("1", "0")]:
        given = [
            variables(store, rank, GROUP_WORLD_SIZE="2", TORCHELASTIC_RESTART_COUNT=count)
            for rank, count in enumerate(counts)
        ]
        late_s = [0.4 if rank == late else 0.0 for rank in range(2)]
        assert exits(meet, list(zip(given, late_s, strict=True))) == [0, 0], counts


@pytest.mark.parametrize(
    ("given", "prefix"),
    [
        ({"GROUP_WORLD_SIZE": "1", "TORCHELASTIC_RESTART_COUNT": "3"}, "start-3"),
        ({"TORCHELASTIC_RESTART_COUNT": "1"}, "start-1"),
        ({}, "start-0"),
    ],
)
def test_on_one_node_the_count_of_its_launcher_is_the_name(
    store: dist.TCPStore, monkeypatch: pytest.MonkeyPatch, given: dict[str, str], prefix: str
) -> None:
    for name in ("GROUP_WORLD_SIZE", "TORCHELASTIC_RESTART_COUNT"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables(store, 1, **given).items():
        monkeypatch.setenv(name, value)
    met, rank, world_size = next(rendezvous(INIT_METHOD, timeout=LIMIT))
    met.set("key", "value")
    assert (rank, world_size, store.get(f"{prefix}/key")) == (1, 2, b"value")


def test_rank_0_waits_no_longer_than_it_may(store: dist.TCPStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a process before asked is in the store, and nobody hears the answer."""
    for name, value in variables(store, 0, GROUP_WORLD_SIZE="2").items():
        monkeypatch.setenv(name, value)
    store.set("names/word-1", "of-before")
    with pytest.raises(dist.DistStoreError, match=r"1 of 2 ranks came within 0\.2 s"):
        next(rendezvous(INIT_METHOD, timeout=timedelta(seconds=0.2)))


RANK = """
import os, sys, time
from datetime import timedelta
from pathlib import Path
import torch, torch.distributed as dist
from pretrain.engine.rendezvous import INIT_METHOD
dist.init_process_group("gloo", init_method=INIT_METHOD, timeout=timedelta(seconds=8))
rank, count, seen = dist.get_rank(), os.environ["TORCHELASTIC_RESTART_COUNT"], Path(sys.argv[1])
dist.barrier()
(seen / f"{os.getpid()}-{count}").touch()
if len(list(seen.iterdir())) <= 2:
    time.sleep(60)  # a validation, in which a rank does not notice that another one is gone
dist.all_reduce(torch.ones(1))
os._exit(0)  # an interpreter that shuts down beside the threads of a group may be aborted
"""


@pytest.mark.slow
def test_two_launchers_start_again_of_which_one_counts(tmp_path: Path) -> None:
    program, seen, log = tmp_path / "rank.py", tmp_path / "seen", tmp_path / "log"
    program.write_text(RANK)
    seen.mkdir()
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        place = f"127.0.0.1:{probe.getsockname()[1]}"
    words = [sys.executable, "-m", "torch.distributed.run", "--nnodes", "2", "--nproc_per_node", "1"]
    words += ["--max_restarts", "1", "--monitor_interval", "0.1", "--rdzv_backend", "c10d"]
    words += ["--rdzv_id", "1", "--rdzv_endpoint", place, str(program), str(seen)]
    with ExitStack() as stack:
        launchers = [stack.enter_context(started(words, log.with_suffix(f".{node}"))) for node in (0, 1)]
        until(lambda: len(list(seen.iterdir())) == 2, log.with_suffix(".0"), 60)
        psutil.Process(launchers[0].pid).children()[0].kill()
        for node, launcher in enumerate(launchers):
            assert launcher.wait(60) == 0, log.with_suffix(f".{node}").read_text()
    assert sorted(path.name.split("-")[1] for path in seen.iterdir()) == ["0", "0", "0", "1"]
