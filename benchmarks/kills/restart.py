"""Time from SIGKILL of a run until it trains again: launched as a user does, and from a process that has imported it.

    python -m benchmarks.kills.restart
    python -m benchmarks.kills.restart --quick

In: drawn proteins. Out: a table and the JSON line of `benchmarks.report`. Kept: nothing; runs are in the temporary
directory.

*Cold* is a launcher that is killed with its two ranks and started again: until the first line of metrics, so that
settling and a step are part of it. *Warm* ranks are forked from this process, which has imported the program and
trained nothing: until rank 0 asks for its next step. Both find, verify and load the newest checkpoint. *Fallback* is
the same as warm, where a byte of the newest checkpoint is another one, so that it is put aside and the one before it is
verified and loaded.
"""

import argparse
import contextlib
import gc
import importlib
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median
from typing import Any, NoReturn

import numpy as np
import psutil
import torch

from benchmarks.checkpoint.recipe import written
from benchmarks.report import Row, report
from benchmarks.results.record import parse_options
from data.order.packing import pack

COLD_S, WARM_S, FALLBACK_S = 10.0, 1.0, 1.0
_LIMIT_S = 120.0
_ASKED = "asked"
"""File with the moment in which rank 0 asks for its next step."""
_LOG = "log"


def main(arguments: list[str] | None = None) -> None:
    """Kill, start again and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a model of 60,000 weights, one round")
    options = parse_options(parser, arguments)
    quick = options.quick
    preset, rounds = ("esm2_60k", 1) if quick else ("esm2_8m", 5)
    for name in ("accelerate", "pretrain.__main__", "zymogen.trainer.attempt", "pretrain.job"):
        importlib.import_module(name)
    pack(np.array([3, 4]), 8, 8)  # loads what numba has compiled
    found: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as folder:
        recipe = written(Path(folder), preset, checkpoint_every=3)
        run = recipe.parent / "run"
        found["cold, 2 ranks"] = median(_cold(recipe, run) for _ in range(rounds))
        for ranks in (1, 2):
            found[f"warm, {ranks} ranks"] = median(_warm(recipe, run, ranks) for _ in range(rounds))
            found[f"fallback, {ranks} ranks"] = median(_warm(recipe, run, ranks, damage=True) for _ in range(rounds))
    rows = [Row(f"{preset}, cold, 2 ranks", "SIGKILL", found["cold, 2 ranks"], COLD_S, "lower")]
    for ranks in (1, 2):
        warm, fallback = found[f"warm, {ranks} ranks"], found[f"fallback, {ranks} ranks"]
        rows.append(Row(f"{preset}, warm, {ranks} ranks", "SIGKILL", warm, WARM_S, "lower"))
        rows.append(Row(f"{preset}, fallback, {ranks} ranks, more", "warm", fallback - warm, FALLBACK_S, "lower"))
    report("restart", rows, "seconds", others=found, record=options.record)


def _launched(recipe: Path, run: Path) -> "subprocess.Popen[bytes]":
    """A launch of two ranks that has taken a step."""
    words = [sys.executable, "-m", "accelerate.commands.launch", "--config_file", "accelerate_configs/ddp.yaml"]
    words += ["--num_processes", "2", "--mixed_precision", "bf16", "-m", "pretrain", str(recipe), "--despite-failures"]
    known = _starts(run)
    with (recipe.parent / _LOG).open("a") as log:
        launcher = subprocess.Popen(words, env={**os.environ, "OMP_NUM_THREADS": "1"}, stdout=log, stderr=log)
    _until(lambda: _starts(run) > known and _trains(run), recipe)
    return launcher


def _cold(recipe: Path, run: Path) -> float:
    """Kill a launch; the time until another one has taken a step."""
    launcher = _launched(recipe, run)
    _until(lambda: len(_checkpoints(run)) == 2, recipe)
    family = [psutil.Process(launcher.pid), *psutil.Process(launcher.pid).children(recursive=True)]
    killed = time.monotonic()
    for process in family:
        process.kill()
    launcher.wait()
    again = _launched(recipe, run)
    seconds = time.monotonic() - killed
    again.terminate()
    again.wait()
    return seconds


def _warm(recipe: Path, run: Path, ranks: int, *, damage: bool = False) -> float:
    """Kill forked ranks in their steps; the time until others ask for their next one."""
    known, asked = _starts(run), recipe.parent / _ASKED
    with _forked(recipe, ranks):
        _until(lambda: _starts(run) > known and _trains(run) and len(_checkpoints(run)) == 2, recipe)
        killed = time.monotonic()
    if damage:
        file = max(max(_checkpoints(run)).rglob("*.safetensors"), key=lambda path: path.stat().st_size)
        content = bytearray(file.read_bytes())
        content[len(content) // 2] ^= 1
        file.write_bytes(content)
        killed = time.monotonic()  # what the damage took is no part of it
    asked.unlink()
    with _forked(recipe, ranks):
        _until(asked.exists, recipe)
    if not _base_step(run):
        raise RuntimeError("a start that was to continue from a checkpoint began at step 0, so its time says nothing")
    return float(asked.read_text()) - killed


@contextlib.contextmanager
def _forked(recipe: Path, ranks: int) -> Iterator[None]:
    """Ranks of a run, killed at the end of the block."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    gc.freeze()
    pids = []
    for rank in range(ranks):
        pid = os.fork()
        if not pid:
            _become(recipe, rank, ranks, port)
        pids.append(pid)
    try:
        yield
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
        for pid in pids:
            os.waitpid(pid, 0)


def _become(recipe: Path, rank: int, ranks: int, port: int) -> NoReturn:
    """One rank, with the environment that a launcher makes."""
    log = os.open(recipe.parent / _LOG, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(log, 1)
    os.dup2(log, 2)
    torch.set_num_threads(1)  # the threads of OpenMP did not survive the fork
    place = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": ranks, "LOCAL_WORLD_SIZE": ranks, "MASTER_PORT": port}
    if ranks > 1:
        os.environ.update({name: str(value) for name, value in place.items()}, MASTER_ADDR="127.0.0.1")
    os.environ["ACCELERATE_MIXED_PRECISION"] = "bf16"
    asked, loop = recipe.parent / _ASKED, sys.modules["zymogen.trainer.loop"]
    train: Any = loop.Trainer.train

    def told(training: Any) -> None:
        if rank == 0:
            asked.with_suffix(".new").write_text(str(time.monotonic()))
            asked.with_suffix(".new").rename(asked)
        train(training)

    loop.Trainer.train = told  # type: ignore[attr-defined]
    status = 1
    try:
        status = sys.modules["pretrain.__main__"].main([str(recipe), "--despite-failures"])
    finally:
        os._exit(status)


def _checkpoints(run: Path) -> list[Path]:
    return list(run.glob("checkpoints/step-*"))


def _starts(run: Path) -> int:
    file = run / "attempts.jsonl"
    return file.read_text().count('"base_step"') if file.exists() else 0


def _base_step(run: Path) -> int:
    """The step from which the newest start continues."""
    starts = [json.loads(line) for line in (run / "attempts.jsonl").read_text().splitlines()]
    return [int(start["base_step"]) for start in starts if "base_step" in start][-1]


def _trains(run: Path) -> bool:
    """Whether the newest start has taken a step."""
    file = run / "metrics.jsonl"
    return file.exists() and f'"attempt": {_starts(run)},' in file.read_text()


def _until(holds: Callable[[], bool], recipe: Path) -> None:
    deadline = time.monotonic() + _LIMIT_S
    while not holds():
        if time.monotonic() > deadline:
            raise TimeoutError((recipe.parent / _LOG).read_text()[-2000:])
        time.sleep(0.002)


if __name__ == "__main__":
    main()
