"""Migration: a run saved by one engine goes on under another, at another world size, optimizer included (C6)."""

import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from support.launching import End, bit_equal, end_of, largest_difference, lines
from support.places import ROOT
from support.rank_pool import RankPool

pytestmark = [pytest.mark.launch, pytest.mark.xdist_group("engines")]

SAVED_AT, ENDED_AT = 8_800, 11_800
"""Tokens seen after 12 and after 16 steps."""
CONSTANT = ("schedule.final_lr=1.0", "--allow-schedule-change")
"""So that stopping early changes nothing but the length."""

Spread = tuple[str, int]
"""An engine, and on how many processes."""


def config(engine: str) -> Path:
    return ROOT / f"accelerate_configs/{engine}.yaml"


@pytest.fixture(scope="session")
def stopped(pool: RankPool, recipe_in, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """The folder of a run that ended after 12 steps; each is made once, and must be copied."""
    made: dict[tuple, Path] = {}

    def run(spread: Spread, total: int, overrides: Sequence[str] = ()) -> Path:
        key = (spread, total, tuple(overrides))
        if key not in made:
            engine, processes = spread
            folder = tmp_path_factory.mktemp(f"{engine}{processes}")
            words = [recipe_in(folder), *overrides, *CONSTANT, f"schedule.total_tokens={total}"]
            done = pool.run(processes, config(engine), words)
            assert done.status == 0, done.output
            made[key] = folder
        return made[key]

    return run


def continued(pool: RankPool, recipe_in, source: Path, folder: Path, spread: Spread, overrides: Sequence[str]) -> End:
    """The end of a copy of a stopped run, gone on with under another spread; what it read is compared with the file."""
    shutil.copytree(source, folder, dirs_exist_ok=True)
    engine, processes = spread
    words = [recipe_in(folder), *overrides, *CONSTANT, f"schedule.total_tokens={ENDED_AT}"]
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


def named(pairs: Sequence[tuple[Spread, Spread]], fast: Sequence[tuple[Spread, Spread]]) -> list[object]:
    return [
        pytest.param(a, b, id=f"{a[0]}-{a[1]}-to-{b[0]}-{b[1]}", marks=[] if (a, b) in fast else [pytest.mark.slow])
        for a, b in pairs
    ]


PAIRS = [(a, b) for a in SPREADS for b in SPREADS]
FAST = [
    (("ddp", 2), ("zero3", 2)),
    (("zero3", 2), ("fsdp2", 2)),
    (("fsdp2", 2), ("zero2", 2)),
    (("zero3", 2), ("single", 1)),
    (("fsdp2", 2), ("zero2", 4)),
    (("hsdp", 4), ("fsdp2", 2)),
]


@pytest.mark.parametrize(("saved_by", "loaded_by"), named(PAIRS + OTHER_WORLDS, FAST))
def test_a_run_goes_on_under_any_other(
    pool: RankPool, recipe_in, tmp_path: Path, stopped, saved_by: Spread, loaded_by: Spread
) -> None:
    end = continued(pool, recipe_in, stopped(saved_by, SAVED_AT), tmp_path, loaded_by, ())
    whole = end_of(stopped(("single", 1), ENDED_AT) / "run")
    assert (end.step, end.chain, end.tokens_seen) == (whole.step, whole.chain, whole.tokens_seen)
    regrouped = end_of(stopped(("single", 1), ENDED_AT, ["data.bins_per_forward=7"]) / "run")
    other = end_of(stopped(("single", 1), ENDED_AT, ["data.bins_per_forward=3"]) / "run")
    noise = max(largest_difference(whole, regrouped), largest_difference(whole, other))
    assert largest_difference(end, whole) <= 3 * noise


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
FAST_SAME = [("fsdp2", 3, ()), ("zero2", 2, ())]


@pytest.mark.parametrize(
    ("engine", "processes", "overrides"),
    [
        pytest.param(
            *same, id=f"{same[0]}-{same[1]}-{len(same[2])}", marks=[] if same in FAST_SAME else [pytest.mark.slow]
        )
        for same in SAME
    ],
)
def test_on_the_same_engine_a_run_goes_on_bit_for_bit(
    pool: RankPool, recipe_in, tmp_path: Path, stopped, engine: str, processes: int, overrides: tuple[str, ...]
) -> None:
    """With three ranks, where the order of a sum shows."""
    spread = engine, processes
    end = continued(pool, recipe_in, stopped(spread, SAVED_AT, overrides), tmp_path, spread, overrides)
    whole = end_of(stopped(spread, ENDED_AT, overrides) / "run")
    assert end.step > 12
    assert (end.step, end.chain) == (whole.step, whole.chain)
    assert bit_equal(end, whole)
    bases = [line["base_step"] for line in lines(tmp_path / "run/attempts.jsonl") if "base_step" in line]
    assert bases[0] == 0
    assert 0 < bases[1] < end.step
