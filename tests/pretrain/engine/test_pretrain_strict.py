"""`run.reduction = "strict"`: the same bits on any number of processes, also where that number changes."""

import json
import random
import subprocess
import sys
from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from pretrain.engine.strict import engine as strict_engine
from pretrain.engine.strict import exact_sums
from pretrain.engine.strict.engine import StrictEngine
from pretrain.engine.strict.exact_sums import ExactSums
from support.kept_runs import BF16, CONSTANT, STEPS_16, Trained
from support.launching import DDP, End, bit_equal, end_of, environment, largest_difference, lines
from support.places import ROOT
from support.rank_pool import RankPool

STRICT = "run.reduction=strict"
MODERN = ("model.preset=modern_60k", "optimizer.name=muon", "compute.checkpointing=selective", "model.dropout=0.1")
engines = pytest.mark.xdist_group("engines")


def sum_of(values: torch.Tensor) -> torch.Tensor:
    sums = ExactSums([torch.Size([2]), values.shape[1:]], torch.device("cpu"))
    for value in values:
        sums.add(1, value)
    first, second = sums.read()
    assert bool(first.isnan().any()) == bool(second.isnan().any())
    assert not first.nan_to_num().any()
    return second


def test_a_sum_is_the_exact_one_in_any_order() -> None:
    """Values of any size whose sum no order of adding floats gives: large ones that cancel, and small ones."""
    draw = random.Random(0)
    columns = []
    for _ in range(200):
        some = [draw.uniform(-1, 1) * 2.0 ** draw.randint(-33, 19) for _ in range(7)]
        columns.append(torch.tensor([*some, *(-x for x in some[:6]), draw.uniform(1, 2) * 2.0**-33]))
    values = torch.stack(columns, dim=1)
    exact = [float(torch.tensor(float(sum(map(Fraction, column.tolist()))))) for column in columns]
    assert sum_of(values).tolist() == exact
    assert sum_of(values.flip(0)).tolist() == exact
    assert not torch.equal(values.sum(0), values.flip(0).sum(0))  # floats


def test_what_is_below_the_last_place_is_rounded_for_each_value_by_itself() -> None:
    third = 2.0**-80
    values = torch.tensor([[0.4 * third, 0.6 * third, 1.0], [0.4 * third, 0.6 * third, 2.0**-57 * (1 + 2.0**-23)]])
    assert sum_of(values).tolist() == [0.0, 2 * third, 1.0]
    assert sum_of(values[1:])[2] == values[1, 2]


@pytest.mark.parametrize("wrong", [float("nan"), float("inf"), -float("inf"), 2.0**20, -(2.0**20)])
def test_a_value_out_of_range_makes_all_sums_nan(wrong: float) -> None:
    values = torch.zeros(3, 4)
    values[1, 2] = wrong
    assert sum_of(values).isnan().all()
    values[1, 2] = 2.0**20 - 1
    assert sum_of(values).tolist() == [0.0, 0.0, 2.0**20 - 1, 0.0]


def test_tensors_of_many_parts_are_added(monkeypatch: pytest.MonkeyPatch) -> None:
    values = torch.randn(3, 5, 7, generator=torch.Generator().manual_seed(1))
    whole = sum_of(values)
    monkeypatch.setattr(exact_sums, "_AT_A_TIME", 4)
    assert torch.equal(sum_of(values), whole)
    assert torch.equal(whole, values.double().sum(0).float())


def recipe(**other: Any) -> Any:
    data = {"bins_per_forward": 1, "bins_per_step": 8} | other
    return SimpleNamespace(data=SimpleNamespace(**data), parallel=SimpleNamespace(context=data.pop("context", 1)))


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ((recipe(), "FSDP", "no"), "the launch asks for FSDP: use accelerate_configs/ddp.yaml"),
        ((recipe(), "DEEPSPEED", "no"), "the launch asks for DEEPSPEED: use accelerate_configs/ddp.yaml"),
        ((recipe(), "MULTI_GPU", "fp16"), "the launch asks for fp16"),
        ((recipe(context=2), "MULTI_GPU", "no"), "parallel.context: got 2, allowed is 1"),
        ((recipe(bins_per_forward=2), "NO", "no"), "data.bins_per_forward: got 2, allowed is 1"),
        ((recipe(bins_per_step=4097), "NO", "no"), "data.bins_per_step: got 4097, allowed are at most 4096"),
    ],
)
def test_what_cannot_give_the_same_bits_is_refused(asked: tuple[Any, str, str], words: str) -> None:
    StrictEngine.check(recipe(bins_per_step=4096), "MULTI_GPU", "bf16")
    StrictEngine.check(recipe(bins_per_forward="auto"), "NO", "no")  # which is 1 there
    with pytest.raises(ValueError, match="reduction = 'strict'") as refused:
        StrictEngine.check(*asked)
    assert words in str(refused.value)


def test_sums_above_the_bound_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    model = torch.nn.Linear(250, 1000, bias=False)
    kept = torch.get_num_threads()
    torch.set_num_threads(2)
    engine = StrictEngine(SimpleNamespace(device=torch.device("cpu"), num_processes=1, process_index=0))
    assert torch.get_num_threads() == 1
    torch.set_num_threads(kept)
    said = "each process keeps 16 bytes for each trained parameter and sends them in every step, 4.0 MB"
    assert engine.exchanges(model) == [f"reduction: strict, {said}"]
    monkeypatch.setattr(strict_engine, "MOST_BYTES", 4_000_000 - 1)
    with pytest.raises(ValueError, match=f"{said}; allowed are 4.0 MB: take it out, or train a smaller model"):
        engine.exchanges(model)


def same(one: End, other: End) -> bool:
    return (other.step, other.chain, other.tokens_seen) == (one.step, one.chain, one.tokens_seen) and bit_equal(
        other, one
    )


@engines
@pytest.mark.launch
def test_one_process_and_three_end_with_the_same_bits(trained: Trained) -> None:
    one, three = trained("single", 1, [STRICT]), trained("ddp", 3, [STRICT])
    assert same(one.end, three.end)
    assert three.losses == one.losses
    fast = trained("single", 1)
    assert not same(fast.end, trained("ddp", 3).end)  # or the test would say nothing
    assert largest_difference(one.end, fast.end) < 1e-5


def stopped_and_continued(
    pool: RankPool, recipe: Path, worlds: tuple[int, ...], *words: str, flags: Sequence[str] = ()
) -> End:
    """The end of a run that trains a part on each number of processes."""
    run = recipe.parent / "run"
    for total, processes in zip((4_000, 8_000, 11_800), worlds, strict=True):
        asked = [recipe, STRICT, CONSTANT, f"schedule.total_tokens={total}", "--allow-schedule-change", *words]
        done = pool.run(processes, DDP, asked, flags=flags)
        assert done.status == 0, done.output
    assert [line["world_size"] for line in lines(run / "attempts.jsonl") if "base_step" in line] == list(worlds)
    return end_of(run)


@engines
@pytest.mark.launch
def test_a_run_that_changes_its_world_ends_with_the_same_bits(
    pool: RankPool, trained: Trained, recipe_in, tmp_path: Path
) -> None:
    end = stopped_and_continued(pool, recipe_in(tmp_path), (2, 1, 2))
    assert same(trained("single", 1, [STRICT]).end, end)
    [said] = [line for line in json.loads((tmp_path / "run/run.json").read_text())["compute"] if "reduction" in line]
    assert said.startswith("reduction: strict, each process keeps 16 bytes for each trained parameter")


@engines
@pytest.mark.slow
def test_four_then_one_then_two_processes_end_with_the_same_bits(
    pool: RankPool, trained: Trained, recipe_in, tmp_path: Path
) -> None:
    """Matrices of Muon, dropout, checkpointed activations and bfloat16."""
    end = stopped_and_continued(pool, recipe_in(tmp_path), (4, 1, 2), *MODERN, flags=BF16)
    assert same(trained("ddp", 2, [STRICT, *MODERN], flags=BF16).end, end)


@pytest.mark.prove
def test_the_number_of_threads_is_no_matter(recipe_in, tmp_path: Path) -> None:
    ends = []
    for threads in ("1", "2"):
        (folder := tmp_path / threads).mkdir()
        words = [sys.executable, "-m", "pretrain", recipe_in(folder), *STEPS_16, STRICT]
        done = subprocess.run(words, cwd=ROOT, env={**environment(), "OMP_NUM_THREADS": threads}, capture_output=True)
        assert done.returncode == 0, done.stderr
        ends.append(end_of(folder / "run"))
    assert same(*ends)
