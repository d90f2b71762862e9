"""Kills a program until it ends, and reads what its last weights have seen.

In: one of `peers.PROGRAMS`, a seed. Out: `Killed`. Kept: nothing.

Each start is forked from this process, which has imported the programs and computed nothing. A third of the kills wait
until something appears where checkpoints are, and come within 30 ms after it; the others come at any moment of the
first seconds. Where a program cannot start from its newest checkpoint, the folder is removed by hand, as a user would,
and counted.
"""

import gc
import json
import os
import random
import shutil
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

LONGEST_S, SAVE_S, LIMIT_S = 1.5, 0.03, 120.0
_CHECKPOINTS = {"ours": "run/checkpoints"}


@dataclass(frozen=True, slots=True)
class Killed:
    """One run that was killed until it ended."""

    kills: int
    twice: int
    """Sequences that the weights were trained on more often than those of a run that nobody killed."""
    never: int
    """Less often."""
    failed: int
    """Starts that ended by an error, so that a checkpoint had to be removed by hand."""
    same: bool
    """Whether the last weights are those of a run that nobody killed, bit for bit."""


def kill(name: str, program: Callable[[Path, int], None], folder: Path, seed: int, most: int) -> Killed:
    """Kill one run, at most so often, until it ends.

    Args:
        name: of the program.
        program: called in a fork, with the folder of the run and the number of the start.
        folder: of the runs; that of one that nobody killed is kept there.
        seed: of the moments.
        most: kills.
    """
    reference, run = folder / "whole", folder / f"seed-{seed}"
    if not reference.exists():
        reference.mkdir(parents=True)
        status = os.waitpid(_start(program, reference, 1), 0)[1]
        assert status == 0, f"{name}: {(reference / 'log').read_text()[-2000:]}"
    run.mkdir()
    draw, kills, failed, attempt = random.Random(seed), 0, 0, 0
    saved = run / _CHECKPOINTS.get(name, "saved")
    while True:
        attempt += 1
        pid = _start(program, run, attempt)
        if kills < most:
            _kill_when_it_is_time(pid, saved, draw)
        status = os.waitpid(pid, 0)[1]
        if status == signal.SIGKILL:
            kills += 1
            continue
        if status == 0:
            break
        failed += 1
        newest = max(saved.iterdir(), key=lambda path: path.stat().st_mtime, default=None)
        if newest is None or failed > most:
            raise RuntimeError(f"{name} does not start: {(run / 'log').read_text()[-2000:]}")
        shutil.rmtree(newest)
    if name == "ours":
        found, whole = (_ours(each) for each in (run, reference))
        return Killed(
            kills, 0 if found[0] == whole[0] else -1, 0 if found[0] == whole[0] else -1, failed, found == whole
        )
    seen, planned = (Counter(number for _, given in history(each) for number in given) for each in (run, reference))
    return Killed(kills, (seen - planned).total(), (planned - seen).total(), failed, _same(run, reference))


def _start(program: Callable[[Path, int], None], folder: Path, attempt: int) -> int:
    gc.freeze()
    pid = os.fork()
    if pid:
        return pid
    status = 1
    try:
        log = os.open(folder / "log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(log, 1)
        os.dup2(log, 2)
        torch.set_num_threads(1)
        program(folder, attempt)
        status = 0
    except SystemExit as error:
        status = int(error.code or 0)
    except BaseException as error:
        os.write(2, f"{type(error).__name__}: {error}\n".encode())
    finally:
        os._exit(status)


def _kill_when_it_is_time(pid: int, saved: Path, draw: random.Random) -> None:
    """Kill a start, unless it ends before that."""
    deadline = time.monotonic() + draw.uniform(0, LONGEST_S)
    if draw.random() < 1 / 3:
        known, limit = _names(saved), time.monotonic() + LIMIT_S
        while not _names(saved) - known and time.monotonic() < limit and not _has_ended(pid):
            time.sleep(0.0005)
        deadline = time.monotonic() + draw.uniform(0, SAVE_S)
    while time.monotonic() < deadline and not _has_ended(pid):
        time.sleep(0.0005)
    os.kill(pid, signal.SIGKILL)


def _has_ended(pid: int) -> bool:
    return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def _names(saved: Path) -> set[str]:
    return {path.name for path in saved.iterdir()} if saved.is_dir() else set()


def history(run: Path) -> Iterator[tuple[int, list[int]]]:
    """The steps whose effect is in the last weights, with what they were given: a start undoes what it repeats."""
    taken: dict[int, list[int]] = {}
    attempt = 0
    for line in (run / "trained.jsonl").read_text().splitlines():
        try:
            step: dict[str, Any] = json.loads(line)
        except ValueError:
            continue
        if step["attempt"] != attempt:
            attempt, taken = step["attempt"], {s: given for s, given in taken.items() if s < step["step"]}
        taken[step["step"]] = step["given"]
    yield from sorted(taken.items())


def _ours(run: Path) -> tuple[str, Any]:
    """The chain over all that was trained, and the hashes of all files of the last checkpoint."""
    from zymogen.trainer.checkpoint.load import find, verify

    end = verify(find(run / "run/checkpoints")[0])
    return end.trainer.chain, end.manifest.files


def _same(run: Path, reference: Path) -> bool:
    one, other = (torch.load(each / "end.pt", weights_only=True) for each in (run, reference))
    return all(torch.equal(one[name], other[name]) for name in other)
