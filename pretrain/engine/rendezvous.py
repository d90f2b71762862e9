"""Where the processes of a start meet: at the store of the launcher's address, among names of this start alone.

In: the environment that a launcher sets. Out: `INIT_METHOD`, for `torch.distributed.init_process_group`. Kept: nothing.

A launcher that starts failed processes again (`--max_restarts`) keeps its store, with what the processes before wrote
into it: torch 2.13 makes no new one, neither with the static rendezvous that `accelerate launch` uses nor with c10d's,
and adds no prefix. A process that asks for the address of another one before that has written its new one gets the old
one, and the start fails, as does the next one. Seen in three of four restarts of two ranks on one machine, and in each
of four on two nodes.

One launcher counts its restarts, and all of its processes are given the count. Each node's launcher counts for itself:
under c10d's rendezvous, one that starts again because another node waits for it does not count that. So the ranks of
several nodes agree on a name, through the same store.
"""

import os
import time
from collections.abc import Iterator
from datetime import timedelta
from typing import Any
from uuid import uuid4

from torch.distributed import DistStoreError
from torch.distributed.constants import default_pg_timeout
from torch.distributed.distributed_c10d import PrefixStore
from torch.distributed.rendezvous import register_rendezvous_handler, rendezvous

_SCHEME = "zymogen"
INIT_METHOD = f"{_SCHEME}://"
"""What "env://" is, for one restart."""
_RESTARTS, _NODES = "TORCHELASTIC_RESTART_COUNT", "GROUP_WORLD_SIZE"
_LOOK_S = 0.05


def _of_this_start(
    url: str, timeout: timedelta = default_pg_timeout, **how: Any
) -> Iterator[tuple[PrefixStore, int, int]]:
    store, rank, world_size = next(rendezvous(url.replace(_SCHEME, "env", 1), timeout=timeout, **how))
    if os.environ.get(_NODES, "1") == "1":
        name = os.environ.get(_RESTARTS, "0")
    else:
        name = _agreed(PrefixStore("names", store), rank, world_size, timeout)
    yield PrefixStore(f"start-{name}", store), rank, world_size
    raise RuntimeError("the processes of a start meet once")


def _agreed(store: PrefixStore, rank: int, world_size: int, timeout: timedelta) -> str:
    """A name that no other start has, and that all ranks of this one know.

    Rank 0 makes it, and answers each rank under a word that the rank has made: no answer to a process before can be
    taken for it. Rank 0 may read, and answer, the word of a process before; it reads on until all ranks have heard it.

    Raises:
        DistStoreError: a rank did not come in time.
    """
    word = uuid4().hex
    if rank:
        store.set(f"word-{rank}", word)
        name = store.get(f"answer-{word}").decode()
        store.add(f"heard-{name}", 1)
        return name
    words, answered = [f"word-{other}" for other in range(1, world_size)], set[bytes]()
    deadline = time.monotonic() + timeout.total_seconds()
    while (heard := store.add(f"heard-{word}", 0)) < world_size - 1:
        if time.monotonic() > deadline:
            raise DistStoreError(f"{heard + 1} of {world_size} ranks came within {timeout.total_seconds():g} s")
        for asked in set(store.multi_get(words)) - answered:
            store.set(f"answer-{asked.decode()}", word)
            answered.add(asked)
        time.sleep(_LOOK_S)
    return word


register_rendezvous_handler(_SCHEME, _of_this_start)  # type: ignore[no-untyped-call]
