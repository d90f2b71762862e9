"""Where the processes of a start meet: at the store of the launcher's address, among names of this start alone.

In: the environment that a launcher sets. Out: `INIT_METHOD`, for `torch.distributed.init_process_group`. Kept: nothing.

A launcher that starts failed processes again (`--max_restarts`) keeps its store, with what the processes before wrote
into it: torch 2.13 makes no new one with the static rendezvous that `accelerate launch` uses, and adds no prefix. A
process that asks for the address of another one before that has written its new one gets the old one, and the start
fails, as does the next one. Seen in three of four restarts of two ranks on one machine.
"""

import os
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

from torch.distributed.constants import default_pg_timeout
from torch.distributed.distributed_c10d import PrefixStore
from torch.distributed.rendezvous import register_rendezvous_handler, rendezvous

_SCHEME = "zymogen"
INIT_METHOD = f"{_SCHEME}://"
"""What "env://" is, for one restart."""
_Met = tuple[PrefixStore, int, int]
"""Store, rank, number of ranks."""
_RESTARTS = "TORCHELASTIC_RESTART_COUNT"


def _of_this_start(
    url: str, timeout: timedelta = default_pg_timeout, **how: Any
) -> Iterator[tuple[PrefixStore, int, int]]:
    store, rank, world_size = next(rendezvous(url.replace(_SCHEME, "env", 1), timeout=timeout, **how))
    yield PrefixStore(f"start-{os.environ.get(_RESTARTS, '0')}", store), rank, world_size
    raise RuntimeError("the processes of a start meet once")


register_rendezvous_handler(_SCHEME, _of_this_start)  # type: ignore[no-untyped-call]
