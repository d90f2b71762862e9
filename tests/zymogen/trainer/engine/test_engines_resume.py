"""Migration: a run saved by one engine goes on under another, at another world size, optimizer included (C6)."""

import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest

from support.kept_runs import STEPS_12, STEPS_16, Trained, as_if_killed, config, yardstick
from support.launching import End, bit_equal, end_of, largest_difference, lines
from support.rank_pool import RankPool

pytestmark = [pytest.mark.launch, pytest.mark.xdist_group("engines")]

Spread = tuple[str, int]
"""An engine, and on how many processes."""


def continued(
    pool: RankPool, recipe_in, source: Path, folder: Path, spread: Spread, overrides: Sequence[str] = ()
) -> End:
    """The end of a copy of a stopped run, gone on with under another spread; what it read is compared with the file."""
    shutil.copytree(source, folder, dirs_exist_ok=True)
    engine, processes = spread
    words = [recipe_in(folder), *overrides, *STEPS_16, "--allow-schedule-change"]
    done = pool.run(processes, config(engine), words, fault="compare_what_was_restored")
    assert done.status == 0, done.output
    assert "restored: every tensor and step as in the file" in done.output
    return end_of(folder / "run")


SPREADS: list[Spread] = [("ddp", 2), ("fsdp2", 2), ("zero2", 2), ("zero3", 2)]
OTHER_WORLDS: list[tuple[Spread, Spread]] = [
    (("zero3", 2), ("single", 1)),
    (("zero2", 4), ("ddp", 2)),
    (("single", 1), ("zero3", 4)),
    (("fsdp2", 2), ("zero2", 4)),
    (("zero2", 2), ("fsdp2", 4)),
    (("fsdp2", 4), ("single", 1)),
    (("zero3", 4), ("zero2", 2)),
    (("hsdp", 4), ("fsdp2", 2)),
    (("zero1", 2), ("hsdp", 4)),
    (("ddp", 2), ("fsdp2", 1)),
    (("fsdp2", 2), ("zero2", 1)),
    (("zero2", 1), ("zero3", 2)),
]


PAIRS = [(a, b) for a in SPREADS for b in SPREADS]
FAST = [
    (("ddp", 2), ("zero3", 2)),
    (("zero3", 2), ("fsdp2", 2)),
    (("fsdp2", 2), ("zero2", 2)),
    (("fsdp2", 2), ("zero2", 4)),
    (("hsdp", 4), ("fsdp2", 2)),
]
CANARY = (("zero3", 2), ("single", 1))


def in_its_tier(pair: tuple[Spread, Spread]) -> object:
    rest = [pytest.mark.slow if pair in OTHER_WORLDS[::3] else pytest.mark.prove]
    marks = [pytest.mark.canary] if pair == CANARY else [] if pair in FAST else rest
    (a, m), (b, n) = pair
    return pytest.param(*pair, id=f"{a}-{m}-to-{b}-{n}", marks=marks)


@pytest.mark.parametrize(("saved_by", "loaded_by"), [in_its_tier(pair) for pair in PAIRS + OTHER_WORLDS])
def test_a_run_goes_on_under_any_other(
    pool: RankPool, recipe_in, tmp_path: Path, trained: Trained, saved_by: Spread, loaded_by: Spread
) -> None:
    end = continued(pool, recipe_in, trained(*saved_by, (), STEPS_12).folder, tmp_path, loaded_by)
    whole = trained("single", 1).end
    assert (end.step, end.chain, end.tokens_seen) == (whole.step, whole.chain, whole.tokens_seen)
    assert largest_difference(end, whole) <= 3 * yardstick(trained)[0]


MODERN_MUON = ("model.preset=modern_60k", "optimizer.name=muon")
CONTEXT = ("parallel.context=2",)
SAME = [
    *((engine, processes, ()) for engine in ("fsdp2", "zero1", "zero2", "zero3") for processes in (2, 3)),
    ("hsdp", 4, ()),
    ("fsdp2", 2, MODERN_MUON),
    ("fsdp2", 3, MODERN_MUON),
    ("ddp", 2, CONTEXT),
    ("fsdp2", 4, CONTEXT),
    ("zero3", 2, CONTEXT),
]


def in_its_tier_too(engine: str, processes: int, overrides: tuple[str, ...]) -> object:
    fast = (("fsdp2", 3, ()), ("zero2", 2, ()))
    slow = (("zero3", 3, ()), ("fsdp2", 3, MODERN_MUON))
    cell = engine, processes, overrides
    marks = [] if cell in fast else [pytest.mark.slow if cell in slow else pytest.mark.prove]
    return pytest.param(*cell, id=f"{engine}-{processes}-{len(overrides)}", marks=marks)


@pytest.mark.parametrize(("engine", "processes", "overrides"), [in_its_tier_too(*same) for same in SAME])
def test_on_the_same_engine_a_run_goes_on_bit_for_bit(
    pool: RankPool, recipe_in, tmp_path: Path, trained: Trained, engine: str, processes: int, overrides: tuple[str, ...]
) -> None:
    """With three ranks, where the order of a sum shows."""
    spread = engine, processes
    whole = trained(*spread, overrides).end
    killed = as_if_killed(trained(*spread, overrides).folder, tmp_path / "killed")
    end = continued(pool, recipe_in, killed, tmp_path, spread, overrides)
    assert end.step > 12
    assert (end.step, end.chain) == (whole.step, whole.chain)
    assert bit_equal(end, whole)
    bases = [line["base_step"] for line in lines(tmp_path / "run/attempts.jsonl") if "base_step" in line]
    assert bases == [0, 10]
