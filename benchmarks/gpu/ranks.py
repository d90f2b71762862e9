"""Processes for checks that need a process group: they are started for one check, and end with it.

    yield from together("context:of_a_rank", place, "gloo", world=2, architecture="esm2")

In: a generator of findings, by module and name, and its arguments. Out: what it finds on rank 0, as it comes.
Kept: nothing; neither a process group nor what Accelerate and DeepSpeed keep reaches later checks.

Ranks meet in a file and communicate over the loopback interface. All of them use the same device; NCCL refuses that, so
several ranks use gloo.
"""

import gc
import json
import os
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import asdict
from datetime import timedelta
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal

import torch
import torch.distributed as dist

from benchmarks.gpu.machine import Place
from benchmarks.gpu.results import Finding, Results
from benchmarks.gpu.worker import one_line

ROOT = Path(__file__).resolve().parents[2]
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
        given: arguments, of types that JSON can hold.

    Raises:
        RuntimeError: a rank raised, or died.
    """
    with TemporaryDirectory() as folder:
        told = {
            **{"work": work, "given": given, "world": world, "store": f"{folder}/store", "parent": os.getpid()},
            **{"device": place.device.type, "backend": "gloo" if place.dry else backend},
        }
        environment = {"GLOO_SOCKET_IFNAME": "lo", "NCCL_SOCKET_IFNAME": "lo", **os.environ, "WORLD_SIZE": str(world)}
        if place.dry:
            environment["CUDA_VISIBLE_DEVICES"] = ""  # Accelerate would use any GPU that it sees
        reading, writing = os.pipe()
        processes: list[subprocess.Popen[bytes]] = []
        try:
            for rank in range(world):
                command = [sys.executable, "-m", "benchmarks.gpu.ranks", json.dumps({**told, "rank": rank})]
                of_rank = {**environment, "RANK": str(rank), "LOCAL_RANK": str(rank)}
                processes.append(subprocess.Popen(command, cwd=ROOT, env=of_rank, stdout=writing))
            os.close(writing)
            writing = -1
            with open(reading, closefd=False, encoding="utf-8") as lines:
                for line in lines:
                    yield _found(json.loads(line))
            statuses = [process.wait() for process in processes]
            if any(statuses):
                raise RuntimeError(f"its ranks ended with exit status {' and '.join(map(str, statuses))}")
        finally:
            for process in processes:
                process.kill()
                process.wait()
            for end in (reading, writing):
                with suppress(OSError):
                    os.close(end)


def _found(said: dict[str, Any]) -> Finding:
    if "failed" in said:
        raise RuntimeError(said["failed"])
    return Finding(**said)


# In one of the processes --------------------------------------------------------------------------


def main(told: dict[str, Any]) -> int:
    """Join the group, do the work, write what was found. Returns the exit status."""
    threading.Thread(target=_end_with, args=(told["parent"],), daemon=True).start()
    # What libraries print goes to standard error: only findings go to the process that reads them.
    results = os.dup(1)
    os.dup2(2, 1)
    try:
        device = torch.device("cuda", 0) if told["device"] == "cuda" else torch.device("cpu")
        if device.type == "cuda":
            torch.cuda.set_device(device)
        else:
            torch.set_num_threads(1)
        store = f"file://{told['store']}"
        dist.init_process_group(
            told["backend"], init_method=store, rank=told["rank"], world_size=told["world"], timeout=TIMEOUT
        )
        module, _, name = told["work"].partition(":")
        work: Callable[..., Iterator[Finding]] = getattr(import_module(f"benchmarks.gpu.{module}"), name)
        for found in work(Place(device, Results(Path(told["store"]).parent)), **told["given"]):
            if told["rank"] == 0:
                _say(results, asdict(found))
        dist.barrier()
    except Exception as error:
        traceback.print_exc(file=sys.stderr)
        # This is written before the group is destroyed, which may wait for ranks that never come.
        _say(results, {"failed": f"rank {told['rank']}: {one_line(error)}"})
        return 1
    finally:
        gc.collect()  # DDP and DeepSpeed hold on to groups
        if dist.is_initialized():
            dist.destroy_process_group()
    return 0


def _say(results: int, what: dict[str, Any]) -> None:
    os.write(results, f"{json.dumps(what)}\n".encode())  # short enough not to mix with the lines of other ranks


def _end_with(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(0.5)
    os._exit(1)


if __name__ == "__main__":
    status = main(json.loads(sys.argv[1]))
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)  # threads of a group that something still holds may abort an interpreter that shuts down
