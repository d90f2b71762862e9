"""Frozen parameters: each engine trains the others as one process does, and no checkpoint holds what does not change.

The yardstick is that of `test_engines`: how far one process ends from itself when bins are grouped otherwise.
Every run compares its frozen parameters at its end with where they came from (`support.jobs.half_frozen`).
"""

import json
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from pretrain.model.build import build_initialized, build_meta
from pretrain.model.presets import PRESETS
from pretrain.model.weights import io as transformers_io
from pretrain.recipe import ModelSettings
from support.checkpoint_run import identity_by_hand
from support.kept_runs import as_if_killed
from support.launching import End, bit_equal, end_of, largest_difference, lines
from support.places import ROOT
from support.rank_pool import Ended, RankPool

pytestmark = [pytest.mark.launch, pytest.mark.xdist_group("engines")]

SECOND, OTHER = "every_second_frozen", "every_other_second_frozen"
BOTTOM, MATRICES = "bottom_frozen", "all_but_matrices_frozen"
NAMES = [name for name, _ in build_meta(PRESETS["esm2_60k"]).named_parameters()]
TRAINED, FROZEN = NAMES[1::2], NAMES[::2]
CONTEXT, BY_LAYER = "parallel.context=2", "compute.checkpointing=layer"
SELECTIVE, MUON = "compute.checkpointing=selective", "optimizer.name=muon"
CONSTANT = ("schedule.final_lr=1.0", "--allow-schedule-change")
"""So that stopping early changes nothing but the length."""


@dataclass(frozen=True)
class Run:
    """A run that ended."""

    folder: Path
    end: End

    @property
    def newest(self) -> Path:
        return sorted((self.folder / "run/checkpoints").glob("step-*"))[-1]

    @property
    def fingerprint(self) -> str:
        """What the newest checkpoint says of the frozen parameters."""
        return str(json.loads((self.newest / "manifest.json").read_text())["fingerprints"]["frozen"])

    def metrics(self, name: str) -> list[float]:
        return [line[name] for line in lines(self.folder / "run/metrics.jsonl") if name in line]


Trained = Callable[..., Run]


def config(engine: str) -> Path:
    return ROOT / f"accelerate_configs/{engine}.yaml"


@pytest.fixture(scope="session")
def trained(pool: RankPool, recipe_in, tmp_path_factory: pytest.TempPathFactory) -> Trained:
    """A run of 14 steps; each is made once."""
    made: dict[tuple, Run] = {}

    def run(engine: str, processes: int, *overrides: str, fault: str = SECOND, total: int = 10_000) -> Run:
        key = (engine, processes, overrides, fault, total)
        if key not in made:
            folder = tmp_path_factory.mktemp(f"{engine}{processes}")
            words = [recipe_in(folder), f"schedule.total_tokens={total}", *overrides]
            done = pool.run(processes, config(engine), words, fault=fault)
            assert done.status == 0, done.output
            assert done.output.count("are as they came") == processes
            made[key] = Run(folder, end_of(folder / "run"))
        return made[key]

    return run


def yardstick(trained: Trained, *overrides: str, fault: str) -> float:
    """How far one process ends from itself when the grouping of a step's bins alone differs."""
    one = trained("single", 1, *overrides, fault=fault).end
    others = [trained("single", 1, f"data.bins_per_forward={n}", *overrides, fault=fault).end for n in (3, 7)]
    return max(largest_difference(one, other) for other in others)


CELLS = [
    *((engine, 2, (), SECOND) for engine in ("ddp", "fsdp2", "zero1")),
    ("zero3", 2, (SELECTIVE,), SECOND),
    ("zero3", 2, (BY_LAYER,), BOTTOM),
    ("zero2", 2, (), MATRICES),
]
SLOW_CELLS = [
    ("fsdp2", 3, (MUON,), SECOND),
    ("ddp", 2, (CONTEXT,), SECOND),
]
REST = [
    ("hsdp", 4, (), SECOND),
    *((engine, 2, (), SECOND) for engine in ("zero2", "zero3")),
    ("fsdp2", 2, (BY_LAYER,), SECOND),
    ("fsdp2", 2, (CONTEXT,), SECOND),
    ("zero3", 2, (BY_LAYER,), SECOND),
    ("zero3", 2, (CONTEXT,), SECOND),
    *(
        cell
        for engine in ("ddp", "fsdp2", "zero1", "zero3")
        for fault in (OTHER, BOTTOM, MATRICES)
        if (cell := (engine, 2, (), fault)) not in SLOW_CELLS
    ),
]


def cells(some: Sequence[tuple[str, int, tuple[str, ...], str]], *marks: Any) -> list[Any]:
    return [pytest.param(*cell, id="-".join([cell[0], str(cell[1]), *cell[2], cell[3]]), marks=marks) for cell in some]


@pytest.mark.parametrize(
    ("engine", "processes", "overrides", "fault"),
    [*cells(CELLS), *cells(SLOW_CELLS, pytest.mark.slow), *cells(REST, pytest.mark.prove)],
)
def test_every_engine_trains_the_others_as_one_process_does(
    trained: Trained, engine: str, processes: int, overrides: tuple[str, ...], fault: str
) -> None:
    optimizer = [word for word in overrides if word == MUON]
    one = trained("single", 1, *optimizer, fault=fault)
    start = trained("single", 1, *optimizer, fault=fault, total=1)
    assert largest_difference(one.end, start.end) > 1e-3
    spread = trained(engine, processes, *overrides, fault=fault)
    assert spread.end.chain == one.end.chain
    assert largest_difference(spread.end, one.end) <= 3 * yardstick(trained, *optimizer, fault=fault)
    assert spread.metrics("grad_norm") == pytest.approx(one.metrics("grad_norm"), rel=1e-4)
    assert spread.fingerprint == one.fingerprint


@pytest.mark.parametrize("engine", ["fsdp2", "zero3"])
def test_a_checkpoint_holds_what_is_trained_and_identifies_the_rest(trained: Trained, engine: str) -> None:
    run = trained(engine, 2)
    assert {*run.end.tensors} == {*TRAINED, *(f"{m}/{n}" for n in TRAINED for m in ("exp_avg", "exp_avg_sq"))}
    index = json.loads((run.newest / "optimizer/index.json").read_text())
    assert index["steps"] == dict.fromkeys(TRAINED, run.end.step)
    first = build_initialized(ModelSettings(preset="esm2_60k"), seed=0)[1]
    assert run.fingerprint == identity_by_hand({name: first[name]() for name in FROZEN})

    exported, weights, _ = transformers_io.published(str(run.folder / "run/export"))
    assert exported.dim == PRESETS["esm2_60k"].dim
    for name in NAMES:
        assert torch.equal(weights[name](), run.end.tensors[name] if name in TRAINED else first[name]()), name


@pytest.mark.parametrize("engine", ["fsdp2", "zero2", pytest.param("zero3", marks=pytest.mark.slow)])
def test_a_gradient_that_is_not_finite_moves_nothing(trained: Trained, engine: str) -> None:
    one, skipped = (trained(*spread, fault=f"{SECOND}+infinite") for spread in (("single", 1), (engine, 2)))
    assert one.end.skipped_steps == skipped.end.skipped_steps == 1
    assert largest_difference(one.end, trained("single", 1).end) > 1e-4
    assert largest_difference(one.end, skipped.end) <= 3 * yardstick(trained, fault=SECOND)


def continued(pool: RankPool, recipe_in, source: Path, folder: Path, spread: tuple[str, int]) -> End:
    """The end of a copy of a run, gone on with until step 16; what was restored is compared with the file."""
    shutil.copytree(source, folder, dirs_exist_ok=True)
    words = [recipe_in(folder), *CONSTANT, "schedule.total_tokens=11_800"]
    done = pool.run(spread[1], config(spread[0]), words, fault=f"{SECOND}+compare_what_was_restored")
    assert done.status == 0, done.output
    assert "restored: every tensor and step as in the file" in done.output
    return end_of(folder / "run")


@pytest.mark.parametrize(
    ("saved_by", "loaded_by"),
    [
        (("zero3", 2), ("fsdp2", 2)),
        (("ddp", 2), ("zero2", 2)),
        *(
            pytest.param(*pair, marks=pytest.mark.prove)
            for pair in ((("fsdp2", 2), ("zero3", 4)), (("zero1", 2), ("single", 1)), (("single", 1), ("hsdp", 4)))
        ),
    ],
)
def test_a_run_goes_on_under_another_engine(
    pool: RankPool, recipe_in, trained: Trained, tmp_path: Path, saved_by: tuple[str, int], loaded_by: tuple[str, int]
) -> None:
    stopped = trained(*saved_by, *CONSTANT, total=8_800)
    end = continued(pool, recipe_in, stopped.folder, tmp_path, loaded_by)
    whole = trained("single", 1, *CONSTANT, total=11_800).end
    assert (end.step, end.chain) == (whole.step, whole.chain)
    assert end.step > stopped.end.step
    assert largest_difference(end, whole) <= 3 * yardstick(trained, fault=SECOND)


@pytest.mark.parametrize(
    "engine",
    ["fsdp2", *(pytest.param(engine, marks=pytest.mark.prove) for engine in ("zero3", "ddp"))],
)
def test_on_the_same_engine_a_run_goes_on_bit_for_bit(
    pool: RankPool, recipe_in, trained: Trained, tmp_path: Path, engine: str
) -> None:
    """With three ranks, where the order of a sum shows."""
    whole = trained(engine, 3, *CONSTANT, total=11_800)
    killed = as_if_killed(whole.folder, tmp_path / "killed")
    assert end_of(killed / "run").step == 10
    assert bit_equal(continued(pool, recipe_in, killed, tmp_path, (engine, 3)), whole.end)


@pytest.fixture(scope="module")
def base(trained: Trained, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A published model."""
    folder = tmp_path_factory.mktemp("published") / "base"
    shutil.copytree(trained("single", 1, total=1).folder / "run/export", folder)
    return folder


def exchange(base: Path, name: str) -> None:
    """Another value of one element, as a later version of a published model has it."""
    weights = load_file(base / "model.safetensors")
    (key,) = (key for key in weights if key.endswith(name))
    weights[key].view(-1)[3] += 1
    save_file(weights, base / "model.safetensors", metadata={"format": "pt"})


def on_base(pool: RankPool, recipe: Path, base: Path, spread: tuple[str, int], total: int, fault: str | None) -> Ended:
    words = [recipe, f"model.init={base}", "model.preset=none", *CONSTANT, f"schedule.total_tokens={total}"]
    return pool.run(spread[1], config(spread[0]), words, fault=fault)


def test_a_run_is_continued_on_the_weights_that_it_began_with(
    pool: RankPool, recipe_in, tmp_path: Path, base: Path
) -> None:
    published, recipe = tmp_path / "base", recipe_in(tmp_path)
    shutil.copytree(base, published)
    done = on_base(pool, recipe, published, ("fsdp2", 2), 3_000, SECOND)
    assert done.status == 0, done.output
    run = Run(tmp_path, end_of(tmp_path / "run"))
    before = {path: path.read_bytes() for path in (tmp_path / "run/checkpoints").rglob("*") if path.is_file()}

    exchange(published, "word_embeddings.weight")  # frozen
    first = transformers_io.published(str(published))[1]
    for spread in (("zero3", 2), ("single", 1)):
        done = on_base(pool, recipe, published, spread, 4_000, SECOND)
        assert done.status == 78, done.output
        now = identity_by_hand({name: first[name]() for name in FROZEN})
        assert done.errors()[0] == (
            f"error: {run.newest} was trained on other frozen parameters, which it does not hold: their content hash "
            f"was {run.fingerprint}, and is now {now}; put back the "
            "weights that the run began with, or choose another run.directory to train on these"
        )
    for fault, words in ((OTHER, "16 missing in the checkpoint"), (None, "16 missing in the checkpoint")):
        done = on_base(pool, recipe, published, ("single", 1), 4_000, fault)
        assert done.status == 78, done.output
        assert f"error: {run.newest}: parameters that are trained differ: {words}" in done.output
        assert "and freeze what it froze" in done.output
    assert {path: path.read_bytes() for path in before} == before

    shutil.copytree(base, published, dirs_exist_ok=True)
    exchange(published, "layer.0.attention.self.query.weight")  # trained: it is in the checkpoint
    done = on_base(pool, recipe, published, ("zero3", 2), 4_000, SECOND)
    assert done.status == 0, done.output
    assert end_of(tmp_path / "run").step > run.end.step
