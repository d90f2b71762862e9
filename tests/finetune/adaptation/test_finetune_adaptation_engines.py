"""Adapters under every engine: each ends where one process does, and B is not 0 under any of them.

The yardstick is that of `test_engines`: how far one process ends from itself when bins are grouped otherwise.
"""

from collections.abc import Callable
from pathlib import Path

import pytest

from support.jobs import adapted_job
from support.launching import End, bit_equal, end_of, largest_difference, lines
from support.places import ROOT
from support.rank_pool import RankPool
from zymogen.trainer.checkpoint.load import verify

pytestmark = [pytest.mark.launch, pytest.mark.xdist_group("finetune")]

DORA = ("adaptation.use_dora=true", 'adaptation.targets=["attention.qkv","feed_forward.down"]')
FULL = ("adaptation.kind=full", "adaptation.layer_decay=0.7")
LENGTH = ("schedule.total_tokens=10_000",)
HEADS = {"head.weight", "head.bias"}

Ended = tuple[End, Path]
Trained = Callable[..., Ended]


def config(engine: str) -> Path:
    return ROOT / f"accelerate_configs/{engine}.yaml"


@pytest.fixture(scope="module")
def trained_on(pool: RankPool, recipe_in, tmp_path_factory: pytest.TempPathFactory) -> Trained:
    """A run of 14 steps; each is made once."""
    made: dict[tuple, Ended] = {}

    def run(engine: str, processes: int, *words: str) -> Ended:
        key = (engine, processes, words)
        if key not in made:
            folder = tmp_path_factory.mktemp(f"{engine}{processes}")
            all_words = [recipe_in(folder), *LENGTH, *words]
            done = pool.run(processes, config(engine), all_words, program=adapted_job.__name__)
            assert done.status == 0, done.output
            made[key] = end_of(folder / "run"), folder / "run"
        return made[key]

    return run


def yardstick(trained_on: Trained, *words: str) -> float:
    one, _ = trained_on("single", 1, *words)
    others = [trained_on("single", 1, f"data.bins_per_forward={n}", *words)[0] for n in (3, 7)]
    return max(largest_difference(one, other) for other in others)


def frozen_hash(root: Path) -> str:
    newest = sorted((root / "checkpoints").glob("step-*"))[-1]
    return verify(newest).manifest.fingerprints["frozen"]


CELLS = [
    *((engine, ()) for engine in ("ddp", "zero3")),
    ("fsdp2", DORA),
    pytest.param("fsdp2", FULL, marks=pytest.mark.slow),
    *(pytest.param(engine, (), marks=pytest.mark.prove) for engine in ("fsdp2", "zero1", "zero2")),
    *(pytest.param(engine, DORA, marks=pytest.mark.prove) for engine in ("ddp", "zero2", "zero3")),
    *(pytest.param(engine, FULL, marks=pytest.mark.prove) for engine in ("ddp", "zero3")),
]


@pytest.mark.parametrize(("engine", "words"), CELLS)
def test_every_engine_trains_adapters_as_one_process_does(
    trained_on: Trained, engine: str, words: tuple[str, ...]
) -> None:
    one, _ = trained_on("single", 1, *words)
    end, root = trained_on(engine, 2, *words)
    assert end.chain == one.chain
    assert largest_difference(end, one) <= 3 * yardstick(trained_on, *words)
    names = {name for name in end.tensors if "/" not in name}
    if words != FULL:
        assert all(name in HEADS or ".lora_" in name for name in names)
        b = [end.tensors[name] for name in names if "lora_B" in name]
        assert len(b) == 4
        assert min(float(value.norm()) for value in b) > 1e-3
        assert frozen_hash(root) == frozen_hash(trained_on("single", 1, *words)[1])


@pytest.mark.slow
@pytest.mark.parametrize("engine", [pytest.param("fsdp2", marks=pytest.mark.prove), "zero3"])
def test_killed_and_resumed_it_ends_to_the_bit_where_it_would_have(
    pool: RankPool, recipe_in, trained_on: Trained, tmp_path: Path, engine: str
) -> None:
    words = [recipe_in(tmp_path), *LENGTH, "run.checkpoint_every=4"]
    run = tmp_path / "run"
    how = {"program": adapted_job.__name__}

    def past_a_checkpoint() -> bool:
        return len(lines(run / "metrics.jsonl")) >= 10 and any(run.glob("checkpoints/step-*"))

    pool.run_and_kill(2, config(engine), words, past_a_checkpoint, **how)
    assert end_of(run).step in (4, 8, 12)
    resumed = pool.run(2, config(engine), words, **how)
    assert resumed.status == 0, resumed.output
    assert bit_equal(end_of(run), trained_on(engine, 2)[0])
