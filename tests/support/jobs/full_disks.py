"""Disks that are full at some save, or on some rank: variants for `wrong_engine.FAULTS`."""

import errno
import itertools
import os
import time
from contextlib import AbstractContextManager, ExitStack, nullcontext
from pathlib import Path
from typing import Any
from unittest import mock

from support.checkpoint_run import clock_of, full_disk, written_at_once
from zymogen.trainer.checkpoint import saver
from zymogen.trainer.checkpoint.files import blocks
from zymogen.trainer.run.directory import RunDirectory


def full_disk_twice() -> AbstractContextManager[Any]:
    """The second save finds no room, and none from the fourth on.

    By the clock of rank 0, failures in consecutive steps are half an hour apart; by the others', no time passes.
    """
    stack = ExitStack()
    stack.enter_context(full_disk({2, *range(4, 1000)}))
    stack.enter_context(written_at_once())
    clock = clock_of(0.0 if int(os.environ["RANK"]) else 1800.0)
    stack.enter_context(mock.patch.object(saver, "monotonic", clock))
    return stack


def full_on_rank_1() -> AbstractContextManager[Any]:
    """The second save finds the disk of rank 1 full."""
    stack = ExitStack()
    stack.enter_context(full_disk({2} if os.environ["RANK"] == "1" else (), rank=1))
    stack.enter_context(written_at_once() if os.environ["RANK"] == "1" else nullcontext())
    return stack


def full_on_rank_0() -> AbstractContextManager[Any]:
    """The second save finds the disk of rank 0 full, and rank 1 writes its moments after rank 0 has removed all.

    Rank 0 begins to write after rank 1 has: one that came later would make the folder again, which nobody removes then.
    """
    write, is_main = blocks.write_file, os.environ["RANK"] == "0"

    def in_turn(folder: Path, path: str, *rest: Any) -> Any:
        begun, part = folder / "model/00001.safetensors", "model/" if is_main else "optimizer/"
        if int(folder.name.rpartition("-")[2]) == 2 and path.startswith(part):
            deadline = time.monotonic() + 60
            while not begun.exists() if is_main else folder.exists():
                assert time.monotonic() < deadline, f"rank {os.environ['RANK']} waits for the other one"
                time.sleep(0.005)
        return write(folder, path, *rest)

    stack = ExitStack()
    stack.enter_context(mock.patch.object(blocks, "write_file", in_turn))
    if is_main:
        stack.enter_context(full_disk({2}))
    return stack


def full_at_the_first_step() -> AbstractContextManager[Any]:
    """run.json is written at the start, and then finds no room after the first two steps."""
    write, times = RunDirectory.describe_recipe, itertools.count(1)

    def faulty(self: RunDirectory, recipe: Any) -> None:
        if next(times) in (2, 3):
            raise OSError(errno.ENOSPC, "No space left on device", str(self.root / "run.json"))
        write(self, recipe)

    return mock.patch.object(RunDirectory, "describe_recipe", faulty)
