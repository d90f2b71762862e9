"""Processes for checks that need a process group: they are started for one check, and end with it.

    yield from together("context:of_a_rank", place, "gloo", world=2, architecture="esm2")

In: a generator of findings, by module and name, and its arguments. Out: what it finds on rank 0, as it comes.
Kept: nothing; neither a process group nor what Accelerate and DeepSpeed keep reaches later checks.

Ranks meet in a file and communicate over the loopback interface. All of them use the same device; NCCL refuses that, so
several ranks use gloo.
"""

import gc
import os
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import timedelta
from importlib import import_module
from multiprocessing import get_context, parent_process
from multiprocessing.connection import Connection
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal
from unittest import mock

import torch
import torch.distributed as dist

from benchmarks.gpu.machine import Place
from benchmarks.gpu.results import Finding, Results
from benchmarks.gpu.worker import one_line

TIMEOUT = timedelta(seconds=60)
"""How long a rank waits for another: shorter than any check with ranks may take."""


def together(
    work: str, place: Place, backend: Literal["nccl", "gloo"], world: int = 1, **given: Any
) -> Iterator[Finding]:
    """What `work` finds in `world` processes with a group of `backend`; in a dry run always gloo.

    Args:
        work: ``module:function`` of this package; called with a place and `given` on every rank.
        place: where to run.
        backend: backend of the default group.
        world: number of processes.
        given: arguments, which another process can be given.

    Raises:
        RuntimeError: a rank raised, or died.
    """
    environment = {"GLOO_SOCKET_IFNAME": "lo", "NCCL_SOCKET_IFNAME": "lo", **os.environ, "WORLD_SIZE": str(world)}
    if place.dry:
        environment["CUDA_VISIBLE_DEVICES"] = ""  # Accelerate would use any GPU that it sees
    spawning = get_context("spawn")
    reading, writing = spawning.Pipe(duplex=False)
    with TemporaryDirectory() as folder:
        group = {"backend": "gloo" if place.dry else backend, "init_method": f"file://{folder}/store"}
        processes = []
        try:
            for rank in range(world):
                told = (writing, work, given, place.device.type, {**group, "rank": rank, "world_size": world})
                process = spawning.Process(target=_of_rank, args=told)
                with mock.patch.dict(os.environ, {**environment, "RANK": str(rank), "LOCAL_RANK": str(rank)}):
                    process.start()
                processes.append(process)
            writing.close()
            with suppress(EOFError):  # all ranks have ended
                while True:
                    found = reading.recv()
                    if isinstance(found, str):
                        raise RuntimeError(found)
                    yield found
            for process in processes:
                process.join()
            statuses = [process.exitcode for process in processes]
            if any(statuses):
                raise RuntimeError(f"its ranks ended with exit status {' and '.join(map(str, statuses))}")
        finally:
            for process in processes:
                process.kill()
                process.join()
            reading.close()
            writing.close()


# In one of the processes --------------------------------------------------------------------------


def _of_rank(results: Connection, work: str, given: dict[str, Any], device_type: str, group: dict[str, Any]) -> None:
    """Join the group, do the work, send what rank 0 finds, or any rank's error."""
    threading.Thread(target=_end_with_parent, daemon=True).start()
    os.dup2(2, 1)  # standard output is the results' alone, and libraries print
    status = 1
    try:
        device = torch.device("cuda", 0) if device_type == "cuda" else torch.device("cpu")
        if device.type == "cuda":
            torch.cuda.set_device(device)
        else:
            torch.set_num_threads(1)
        dist.init_process_group(**group, timeout=TIMEOUT)
        module, _, name = work.partition(":")
        find: Callable[..., Iterator[Finding]] = getattr(import_module(f"benchmarks.gpu.{module}"), name)
        # No check looks for earlier results here, so the folder is never written.
        for found in find(Place(device, Results(Path())), **given):
            if group["rank"] == 0:
                results.send(found)
        dist.barrier()
        status = 0
    except Exception as error:
        traceback.print_exc(file=sys.stderr)
        # This is sent before the group is destroyed, which may wait for ranks that never come. A message is short
        # enough not to mix with those of other ranks.
        results.send(f"rank {group['rank']}: {one_line(error)}")
    finally:
        gc.collect()  # DDP and DeepSpeed hold on to groups
        if dist.is_initialized():
            dist.destroy_process_group()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)  # threads of a group that something still holds may abort an interpreter that shuts down


def _end_with_parent() -> None:
    parent = parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)
