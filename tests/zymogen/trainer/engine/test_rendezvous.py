"""Where ranks meet when a launcher starts them again: on one node by its count, on several whatever each one counts."""

import os
import socket
import sys
import time
from collections.abc import Mapping
from contextlib import ExitStack
from datetime import timedelta
from pathlib import Path
from signal import SIGINT, SIGTERM, Signals
from types import SimpleNamespace

import psutil
import pytest
import torch
import torch.distributed as dist
from accelerate.utils.other import get_free_port
from torch.distributed.rendezvous import rendezvous

from support.chaos.campaign import Campaign
from support.forked import forked, status_of
from support.launching import exits, fork_server, started, torchrun_variables, until
from zymogen.processes import signals
from zymogen.processes.fresh_process import ROLLBACKS
from zymogen.trainer.engine import launch
from zymogen.trainer.engine.rendezvous import INIT_METHOD

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
        ({"GROUP_WORLD_SIZE": "1", "TORCHELASTIC_RESTART_COUNT": "3"}, "start-3-0"),
        ({"TORCHELASTIC_RESTART_COUNT": "1", ROLLBACKS: "2"}, "start-1-2"),
        ({}, "start-0-0"),
    ],
)
def test_on_one_node_the_count_of_its_launcher_is_the_name(
    store: dist.TCPStore, monkeypatch: pytest.MonkeyPatch, given: dict[str, str], prefix: str
) -> None:
    for name in ("GROUP_WORLD_SIZE", "TORCHELASTIC_RESTART_COUNT"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables(store, 1, **given).items():
        monkeypatch.setenv(name, value)
    store.add(f"{prefix}/come", 1)  # rank 0
    met, rank, world_size = next(rendezvous(INIT_METHOD, timeout=LIMIT))
    met.set("key", "value")
    assert (rank, world_size, store.get(f"{prefix}/key")) == (1, 2, b"value")


def hold_store(port: int) -> None:
    """What rank 0 does that is replaced by a fresh process as soon as another rank has met its store."""
    store = dist.TCPStore("127.0.0.1", port, is_master=True, wait_for_workers=False, timeout=LIMIT)
    while store.add("start-0-1/come", 0) == 0:
        time.sleep(0.01)
    os._exit(0)


@pytest.mark.slow
def test_a_rank_that_met_the_store_of_a_replaced_process_comes_again() -> None:
    port = get_free_port()
    given = [torchrun_variables(rank, 2, port) | {ROLLBACKS: "1"} for rank in range(2)]
    held = fork_server().Process(target=hold_store, args=(port,))
    ranks = [fork_server().Process(target=meet, args=(each, 0.0)) for each in given]
    held.start()
    ranks[1].start()
    held.join(60)
    ranks[0].start()
    for rank in ranks:
        rank.join(60)
    assert (held.exitcode, *(rank.exitcode for rank in ranks)) == (0, 0, 0)


def test_rank_0_waits_no_longer_than_it_may(store: dist.TCPStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a process before asked is in the store, and nobody hears the answer."""
    for name, value in variables(store, 0, GROUP_WORLD_SIZE="2").items():
        monkeypatch.setenv(name, value)
    before = "0" * 32
    store.append("names/words", before)
    with pytest.raises(dist.DistStoreError, match=rf"^waited 0\.2 s at 127.0.0.1:{store.port} for 1 of 2 processes"):
        next(rendezvous(INIT_METHOD, timeout=timedelta(seconds=0.2)))
    assert len(store.get(f"names/answer-{before}")) == 32


@pytest.mark.parametrize("nodes", ["1", "2"])
@pytest.mark.parametrize("rank", [0, 1])
def test_a_process_says_for_whom_it_waits_ever_more_rarely(
    rank: int, nodes: str, store: dist.TCPStore, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    for name, value in variables(store, rank, GROUP_WORLD_SIZE=nodes).items():
        monkeypatch.setenv(name, value)
    now, pauses = [1000.0], []

    def sleep(seconds: float) -> None:
        pauses.append(seconds)
        now[0] += seconds

    monkeypatch.setattr(
        "zymogen.trainer.engine.rendezvous.time", SimpleNamespace(monotonic=lambda: now[0], sleep=sleep)
    )
    with pytest.raises(dist.DistStoreError):
        next(rendezvous(INIT_METHOD, timeout=timedelta(seconds=100)))
    who = "rank 0" if (rank, nodes) == (1, "2") else "1 of 2 processes"
    said = capfd.readouterr().err.splitlines()
    assert [line.rpartition(" ")[0].rpartition(" ")[0] for line in said] == [
        f"rank {rank} waits for {who} at 127.0.0.1:{store.port} since"
    ] * 5
    seconds = [int(line.split(" ")[-2]) for line in said]
    assert all(0 <= second - due <= 1 for second, due in zip(seconds, (5, 10, 20, 40, 80), strict=True))
    assert len(pauses) < 120  # one message a second, and some more at the beginning


@pytest.mark.parametrize("by", [SIGTERM, SIGINT])
def test_a_signal_ends_a_wait_inside_a_library(by: Signals, store: dist.TCPStore, tmp_path: Path) -> None:
    def waits() -> None:
        with signals.handle_signals(), signals.exit_on_signal():
            (tmp_path / "waits").touch()
            dist.TCPStore("127.0.0.1", store.port, is_master=False, wait_for_workers=False).wait(["never"])

    pid = forked(waits)
    until((tmp_path / "waits").exists, tmp_path / "waits")
    time.sleep(0.1)
    os.kill(pid, by)
    assert status_of(pid) == signals.STATUS[by]


def test_an_error_of_gloo_names_the_variable_and_the_interface(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {**torchrun_variables(1, 2, 29500), "GLOO_SOCKET_IFNAME": "none0"}.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(RuntimeError, match="none0") as failed, launch._named_interface():
        dist.ProcessGroupGloo.create_device(interface="none0")
    (note,) = failed.value.__notes__
    assert note.startswith(f"gloo connects no ranks from rank 1 on {socket.gethostname()} (GLOO_SOCKET_IFNAME=none0): ")
    assert note.endswith("reaches 127.0.0.1 on every node before the launch: export GLOO_SOCKET_IFNAME=lo")
    monkeypatch.delenv("GLOO_SOCKET_IFNAME")
    address = socket.gethostbyname(socket.gethostname())
    assert f"({address}, to which its name resolves)" in launch._interface()
    with pytest.raises(RuntimeError, match="another") as failed, launch._named_interface():
        raise RuntimeError("another error")
    assert not hasattr(failed.value, "__notes__")


@pytest.mark.launch
@pytest.mark.xdist_group("engines")
def test_ranks_without_an_interface_for_gloo_say_so(recipe_in, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "none0")
    run = tmp_path / "runs/none"
    pids = Campaign(tmp_path / "runs", recipe_in(tmp_path), tokens=24_000).start(run, "ddp", 2)
    assert [status_of(pid) for pid in pids] == [71, 71], run.with_suffix(".log").read_text()
    assert "(GLOO_SOCKET_IFNAME=none0): set the network interface" in run.with_suffix(".log").read_text()


RANK = """
import os, sys, time
from datetime import timedelta
from pathlib import Path
import torch, torch.distributed as dist
from zymogen.trainer.engine.rendezvous import INIT_METHOD
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
