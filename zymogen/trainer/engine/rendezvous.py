"""Where the processes of a start meet: at the store of the launcher's address, among names of this start alone.

In: the environment that a launcher sets. Out: `INIT_METHOD`, for `torch.distributed.init_process_group`; `connected`, a
client of that store. Kept: nothing.

A launcher that starts failed processes again (`--max_restarts`) keeps its store, with what the processes before wrote
into it: torch 2.13 makes no new one, neither with the static rendezvous that `accelerate launch` uses nor with c10d's,
and adds no prefix. A process that asks for the address of another one before that has written its new one gets the old
one, and the start fails, as does the next one. Seen in three of four restarts of two ranks on one machine, and in each
of four on two nodes.

One launcher counts its restarts, and all of its processes are given the count; after a rollback, processes that are
replaced count these themselves. Where rank 0 itself has the store, the old one ends when that process is replaced, and
others that have met there come again. Each node's launcher counts for itself:
under c10d's rendezvous, one that starts again because another node waits for it does not count that. So the ranks of
several nodes agree on a name, through the same store.

All of this waits in Python, so that signals are answered: a process says after some seconds for how many others it
waits, and where.
"""

import os
import socket
import sys
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any
from uuid import uuid4

from torch._C._distributed_c10d import TCPStore
from torch.distributed import DistNetworkError, DistStoreError
from torch.distributed.constants import default_pg_timeout
from torch.distributed.distributed_c10d import PrefixStore
from torch.distributed.rendezvous import register_rendezvous_handler

from zymogen.processes.fresh_process import ROLLBACKS
from zymogen.processes.launcher import LaunchedWorld, launched_world

_SCHEME = "zymogen"
INIT_METHOD = f"{_SCHEME}://"
"""What "env://" is, for one restart."""
_RESTARTS = "TORCHELASTIC_RESTART_COUNT"
_SHORTEST_PAUSE_S, _LONGEST_PAUSE_S = 0.01, 1.0
_SAYS_AFTER_S = 5.0
"""Seconds after which a process says that it waits; again after twice as long, and so on."""
_CONNECT_S = 2.0


def connected(timeout: timedelta, *, hosts: bool = False) -> TCPStore:
    """A new connection to the store at which this launch meets.

    Args:
        timeout: of its calls; those that wait for an answer of a host that stands still never end.
        hosts: whether this process is the host.
    """
    world = launched_world()
    how: dict[str, Any] = {"is_master": hosts, "multi_tenant": hosts, "wait_for_workers": False}
    return TCPStore(world.address, world.port, timeout=timeout, **how)


def store_host() -> str:
    """Name the process that is the host of the store: under torchelastic a launcher, else rank 0."""
    world, is_launcher = launched_world(), os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == str(True)
    return f"{'the launcher of the first node' if is_launcher else 'rank 0'} at {world.address}:{world.port}"


def _of_this_start(
    url: str, timeout: timedelta = default_pg_timeout, **_: Any
) -> Iterator[tuple[PrefixStore, int, int]]:
    world = launched_world()
    hosts = world.rank == 0 and store_host().startswith("rank 0")
    while True:
        try:
            met = _met(world, timeout, hosts=hosts)
            break
        except DistNetworkError:  # the store was that of a process of rank 0 which a rollback has replaced since
            if hosts or ROLLBACKS not in os.environ:
                raise
    yield met, world.rank, world.world_size
    raise RuntimeError("the processes of a start meet once")


def _met(world: LaunchedWorld, timeout: timedelta, *, hosts: bool) -> PrefixStore:
    """The names of this start in the store, once all of its processes have come."""
    if not hosts:
        _wait(lambda: "" if _answers(world) else "the store of " + store_host().partition(" at ")[0], world, timeout)
    store = connected(timeout, hosts=hosts)
    name, answer = f"{os.environ.get(_RESTARTS, '0')}-{os.environ.get(ROLLBACKS, '0')}", _nobody
    if world.num_nodes > 1:
        name, answer = _agreed(PrefixStore("names", store), world, timeout)
    met = PrefixStore(f"start-{name}", store)
    met.add("come", 1)

    def missing() -> str:
        answer()
        come = met.add("come", 0)
        return f"{world.world_size - come} of {world.world_size} processes" if come < world.world_size else ""

    _wait(missing, world, timeout)
    return met


def _answers(world: LaunchedWorld) -> bool:
    try:
        socket.create_connection((world.address, world.port), _CONNECT_S).close()
    except OSError:  # refused, no route, or a name that is not known yet
        return False
    return True


def _wait(missing: Callable[[], str], world: LaunchedWorld, timeout: timedelta) -> None:
    """Wait until `missing` names nobody, and say so rarely.

    Raises:
        DistStoreError: somebody was missing for too long.
    """
    began, pause_s, says_after_s = time.monotonic(), _SHORTEST_PAUSE_S, _SAYS_AFTER_S
    while who := missing():
        waited_s = time.monotonic() - began
        where = f"{world.address}:{world.port}"
        if waited_s > timeout.total_seconds():
            raise DistStoreError(f"waited {timeout.total_seconds():g} s at {where} for {who}")
        if waited_s > says_after_s and world.rank % (world.local_world_size or 1) == 0:
            print(f"rank {world.rank} waits for {who} at {where} since {waited_s:.0f} s", file=sys.stderr, flush=True)
            says_after_s *= 2
        time.sleep(pause_s)
        pause_s = min(1.5 * pause_s, _LONGEST_PAUSE_S)


def _nobody() -> None:
    """Answer nobody."""


def _agreed(store: Any, world: LaunchedWorld, timeout: timedelta) -> tuple[str, Callable[[], None]]:
    """A name that no other start has and all ranks of this one know, and how this rank answers those that ask for it.

    Rank 0 makes it, and answers each rank under a word that the rank has made: no answer to a process before can be
    taken for it. Rank 0 answers words of processes before, too, until all ranks have come.

    Raises:
        DistStoreError: rank 0 did not come in time.
    """
    word, answered = uuid4().hex, 0
    store.append("words", word)
    if world.rank:
        _wait(lambda: "" if store.check([f"answer-{word}"]) else "rank 0", world, timeout)
        return store.get(f"answer-{word}").decode(), _nobody

    def answer() -> None:
        nonlocal answered
        words = store.get("words").decode()[answered:]
        answered += len(words)
        if asked := [words[start : start + len(word)] for start in range(0, len(words), len(word))]:
            store.multi_set([f"answer-{each}" for each in asked], [word] * len(asked))

    return word, answer


register_rendezvous_handler(_SCHEME, _of_this_start)  # type: ignore[no-untyped-call]
