"""Runs that tests of several files compare with: each is made once, in the kept processes.

In: where a run is spread and what it trains. Out: `Ended`. Kept: every run, by all that it was given.
"""

import json
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from support.launching import End, bit_equal, end_of, largest_difference, lines
from support.places import ROOT
from support.rank_pool import PROGRAM, RankPool

CONSTANT = "schedule.final_lr=1.0"
"""So that stopping early changes nothing but the length."""
STEPS_16 = ("schedule.total_tokens=11_800", CONSTANT)
STEPS_12 = ("schedule.total_tokens=8_800", CONSTANT)
STEP_1 = ("schedule.total_tokens=1", CONSTANT)
STEPS_30 = ()
"""The recipe's own, with a learning rate that falls."""
BF16 = ("--mixed_precision", "bf16")


@dataclass(frozen=True)
class Ended:
    """Where a run ended, and how it came there."""

    folder: Path
    """Of its recipe; to be copied by a test that goes on from it."""
    end: End
    losses: list[float]
    """Of every step."""


def config(engine: str) -> Path:
    return ROOT / f"accelerate_configs/{engine}.yaml"


class Trained:
    """Makes a run when it is first asked for, and keeps it.

    Args:
        pool: where runs are made.
        recipe_in: writes the recipe of a run into a folder.
        folders: where runs lie.
        program: the module whose `main` is run.
    """

    def __init__(
        self,
        pool: RankPool,
        recipe_in: Callable[[Path], Path],
        folders: pytest.TempPathFactory,
        program: str = PROGRAM,
    ) -> None:
        self._pool, self._recipe_in, self._folders, self._program = pool, recipe_in, folders, program
        self._stores = folders.mktemp("stores")  # one for all: a search for relatives takes longer than to train
        self._made: dict[tuple, Ended] = {}

    def __call__(
        self,
        engine: str,
        processes: int,
        overrides: Sequence[str] = (),
        length: Sequence[str] = STEPS_16,
        *,
        fault: str | None = None,
        flags: Sequence[str] = (),
    ) -> Ended:
        """The end of the run that is spread like this."""
        key = (engine, processes, *map(tuple, (overrides, length, flags)), fault)
        if key not in self._made:
            folder = self._folders.mktemp(f"{engine}{processes}")
            words = [self._recipe_in(folder), f'data.store_dir="{self._stores}"', *length, *overrides]
            done = self._pool.run(processes, config(engine), words, fault=fault, flags=flags, program=self._program)
            assert done.status == 0, done.output
            losses = [line["loss"] for line in lines(folder / "run/metrics.jsonl") if "loss" in line]
            self._made[key] = Ended(folder, end_of(folder / "run"), losses)
        return self._made[key]


def as_if_killed(finished: Path, folder: Path) -> Path:
    """A copy of a finished run, as if it had been killed just before its last save: an earlier checkpoint is newest."""
    shutil.copytree(finished, folder)
    shutil.rmtree(max((folder / "run/checkpoints").glob("step-*")))
    shutil.rmtree(folder / "run/export")
    attempts = folder / "run/attempts.jsonl"
    attempts.write_text("".join(line for line in attempts.open() if "exit" not in json.loads(line)))
    return folder


def distances(a: Ended, b: Ended) -> tuple[float, float]:
    """Largest difference of a weight, and of a step's loss."""
    assert a.end.chain == b.end.chain
    return largest_difference(a.end, b.end), max(abs(x - y) for x, y in zip(a.losses, b.losses, strict=True))


def yardstick(
    trained: Trained, overrides: Sequence[str] = (), length: Sequence[str] = STEPS_16, flags: Sequence[str] = ()
) -> tuple[float, float]:
    """How far one process ends from itself when the grouping of a step's bins alone differs."""
    one = trained("single", 1, overrides, length, flags=flags)
    others = [trained("single", 1, [*overrides, f"data.bins_per_forward={n}"], length, flags=flags) for n in (3, 7)]
    weights, losses = zip(*(distances(one, other) for other in others), strict=True)
    return max(weights), max(losses)


def begun(run: Path) -> list[int]:
    """The step from which each start of a run began."""
    return [line["base_step"] for line in lines(run / "attempts.jsonl") if "base_step" in line]


def ends(run: Path) -> list[str]:
    """How each start of a run ended."""
    return [line["exit"] for line in lines(run / "attempts.jsonl") if "exit" in line]


def same(a: End, b: End) -> bool:
    """Whether two runs ended with the same bytes and the same samples."""
    return bit_equal(a, b) and replace(a, tensors={}) == replace(b, tensors={})
