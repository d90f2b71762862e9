"""The matrix: every engine, with and without context parallelism, ends where one process ends: C5 of docs/contracts.md.

Every run is the real program over 14 steps of 7 bins, into its second pass: ranks have unequal numbers of bins and of
targets, several micro-batches each, and on the engines that keep step one rank has a micro-batch without a target. The
yardstick is how far one process ends from itself when the bins of a step are grouped otherwise: that is rounding, and
nothing else.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from support.launching import DDP, End, end_of, largest_difference, lines
from support.places import ROOT
from support.rank_pool import RankPool

pytestmark = [pytest.mark.launch, pytest.mark.xdist_group("engines")]

MODERN = ("model.preset=modern_60k",)
MUON = (*MODERN, "optimizer.name=muon")
TWO = ("parallel.context=2",)
GATHER = (*TWO, "parallel.exchange=all_gather")
CHECKPOINTED = ("compute.checkpointing=layer",)
SHORTEST = "schedule.total_tokens=1"
LONG = "schedule.total_tokens=22_000"
"""30 steps: ZeRO rounds a gradient twice where the world is no power of two, and 14 are too few to even that out."""
BF16 = ("--mixed_precision", "bf16")


@dataclass(frozen=True)
class Ended:
    """Where a run ended, and how it came there."""

    end: End
    losses: list[float]
    """Of every step."""


Trained = Callable[..., Ended]


@pytest.fixture(scope="session")
def trained(pool: RankPool, recipe_in, tmp_path_factory: pytest.TempPathFactory) -> Trained:
    """The end of a run of 14 steps; each is made once."""
    made: dict[tuple, Ended] = {}

    def run(
        engine: str,
        processes: int,
        overrides: Sequence[str] = (),
        *,
        fault: str | None = None,
        flags: Sequence[str] = (),
    ) -> Ended:
        key = (engine, processes, tuple(overrides), fault, tuple(flags))
        if key not in made:
            folder = tmp_path_factory.mktemp(f"{engine}{processes}")
            config = ROOT / f"accelerate_configs/{engine}.yaml"
            length = [] if {SHORTEST, LONG} & {*overrides} else ["schedule.total_tokens=10_000"]
            words = [recipe_in(folder), *length, *overrides]
            done = pool.run(processes, config, words, fault=fault, flags=flags)
            assert done.status == 0, done.output
            losses = [line["loss"] for line in lines(folder / "run/metrics.jsonl") if "loss" in line]
            made[key] = Ended(end_of(folder / "run"), losses)
        return made[key]

    return run


def distances(a: Ended, b: Ended) -> tuple[float, float]:
    """Largest difference of a weight, and of a step's loss."""
    assert a.end.chain == b.end.chain
    return largest_difference(a.end, b.end), max(abs(x - y) for x, y in zip(a.losses, b.losses, strict=True))


def yardstick(trained: Trained, overrides: Sequence[str] = (), flags: Sequence[str] = ()) -> tuple[float, float]:
    """How far one process ends from itself when the grouping of a step's bins alone differs."""
    one = trained("single", 1, overrides, flags=flags)
    others = [trained("single", 1, [*overrides, f"data.bins_per_forward={n}"], flags=flags) for n in (3, 7)]
    weights, losses = zip(*(distances(one, other) for other in others), strict=True)
    return max(weights), max(losses)


def model_of(overrides: Sequence[str]) -> list[str]:
    """Those overrides that one process has too."""
    return [o for o in overrides if o.startswith(("model.", "optimizer.", "schedule."))]


def cell(engine: str, processes: int, *overrides: str, slow: bool = False) -> object:
    """A parameter of the matrix, named for what it is."""
    words = [o.partition("=")[2] if not o.startswith("parallel.c") else "context" for o in overrides]
    marks = [pytest.mark.slow] if slow else []
    return pytest.param(engine, processes, overrides, id="-".join([engine, str(processes), *words]), marks=marks)


MATRIX = [
    *(cell(engine, 2) for engine in ("ddp", "fsdp2", "zero1", "zero2", "zero3")),
    *(cell(engine, 2, *TWO) for engine in ("ddp", "fsdp2", "zero1", "zero2", "zero3")),
    cell("hsdp", 4),
    cell("hsdp", 4, *TWO),
    cell("fsdp2", 2, *GATHER),
    *(cell(engine, 4, *TWO, slow=engine != "fsdp2") for engine in ("ddp", "fsdp2", "zero3")),
    # the untied head, whose weight is read outside of its module's own forward pass
    *(cell(engine, 2, *MODERN, *TWO, slow=engine == "zero3") for engine in ("fsdp2", "zero3")),
    *(cell(engine, 2, *MODERN, slow=True) for engine in ("fsdp2", "zero1", "zero2", "zero3")),
    *(cell(engine, 2, *MUON) for engine in ("fsdp2",)),
    *(cell(engine, 2, *MUON, *TWO, slow=True) for engine in ("ddp", "fsdp2")),
    cell("hsdp", 4, *MUON, slow=True),
    cell("fsdp2", 3, *MUON, slow=True),  # shards of unequal sizes
    *(cell(engine, 2, *CHECKPOINTED, *TWO, slow=True) for engine in ("fsdp2", "zero3")),
    *(cell(engine, 2, "compute.checkpointing=selective", slow=True) for engine in ("fsdp2", "zero2", "zero3")),
    *(cell(engine, 3, LONG, slow=True) for engine in ("fsdp2", "zero1", "zero2", "zero3")),
]


@pytest.mark.parametrize(("engine", "processes", "overrides"), MATRIX)
def test_every_engine_ends_where_one_process_ends(
    trained: Trained, engine: str, processes: int, overrides: tuple[str, ...]
) -> None:
    model = model_of(overrides)
    one = trained("single", 1, model)
    at_start = trained("single", 1, [*(o for o in model if o != LONG), SHORTEST])
    assert largest_difference(one.end, at_start.end) > 1e-3  # parameters moved
    of_weights, of_losses = yardstick(trained, model)
    assert of_weights < 2e-6  # what rounding in float32 amounts to over these steps
    weights, losses = distances(one, trained(engine, processes, overrides))
    assert weights <= 3 * of_weights
    assert losses <= 3 * of_losses


@pytest.mark.parametrize(
    ("engine", "overrides"),
    [
        *((engine, ()) for engine in ("ddp", "fsdp2", "zero2", "zero3")),
        *(pytest.param(engine, TWO, marks=pytest.mark.slow) for engine in ("ddp", "fsdp2", "zero3")),
        pytest.param("zero1", (), marks=pytest.mark.slow),
    ],
)
def test_engines_agree_in_bf16_as_far_as_bf16_does_with_itself(
    trained: Trained, engine: str, overrides: tuple[str, ...]
) -> None:
    """Sums of a step are rounded to bfloat16 once for each micro-batch, so the yardstick is the same: regrouping."""
    one = trained("single", 1, flags=BF16)
    of_weights, of_losses = yardstick(trained, flags=BF16)
    assert of_weights > 1e-5  # a thousand times what float32 has: these runs did compute in bfloat16
    weights, losses = distances(one, trained(engine, 2, overrides, flags=BF16))
    assert weights <= 3 * of_weights
    assert losses <= 3 * of_losses


@pytest.mark.parametrize(
    ("fault", "engine", "overrides"),
    [
        ("local_counts", "fsdp2", ()),
        ("local_counts", "zero2", ()),
        ("causal", "fsdp2", ("compute.attention=per_document", *TWO)),
        ("own_share", "ddp", TWO),
    ],
)
def test_controls_are_seen(trained: Trained, fault: str, engine: str, overrides: tuple[str, ...]) -> None:
    """Division by each rank's own counts; attention to earlier positions alone, or to a rank's own slots."""
    one, wrong = trained("single", 1), trained(engine, 2, overrides, fault=fault)
    assert largest_difference(one.end, wrong.end) > 300 * yardstick(trained)[0]


@pytest.mark.parametrize(
    ("engine", "overrides"),
    [
        ("fsdp2", ()),
        ("zero2", ()),
        ("zero3", ()),
        ("ddp", TWO),
        pytest.param("zero1", (), marks=pytest.mark.slow),
        pytest.param("fsdp2", MUON, marks=pytest.mark.slow),
    ],
)
def test_a_gradient_that_is_not_finite_on_one_rank_moves_nothing_on_any(
    trained: Trained, engine: str, overrides: tuple[str, ...]
) -> None:
    """And leaves nothing behind: the steps after it go where one process goes that skipped the same step."""
    model = model_of(overrides)
    one, skipped = trained("single", 1, model, fault="infinite"), trained(engine, 2, overrides, fault="infinite")
    assert one.end.skipped_steps == skipped.end.skipped_steps == 1
    assert largest_difference(one.end, trained("single", 1, model).end) > 1e-4
    assert distances(one, skipped)[0] <= 3 * yardstick(trained, model)[0]


@pytest.mark.parametrize(
    ("engine", "overrides"),
    [
        *((engine, ()) for engine in ("ddp", "zero1")),
        *(pytest.param(engine, (), marks=pytest.mark.slow) for engine in ("fsdp2", "zero2", "zero3")),
        *(pytest.param(engine, TWO, marks=pytest.mark.slow) for engine in ("ddp", "zero1", "fsdp2", "zero2", "zero3")),
    ],
)
def test_bins_without_a_target_change_no_mean(trained: Trained, engine: str, overrides: tuple[str, ...]) -> None:
    """Three of the seven of every step: micro-batches that a rank computes, and whose loss has no term."""
    one = trained("single", 1, fault="targetless")
    assert largest_difference(one.end, trained("single", 1).end) > 1e-4
    weights, losses = distances(one, trained(engine, 2, overrides, fault="targetless"))
    assert weights <= 3 * yardstick(trained)[0]
    assert losses <= 3 * yardstick(trained)[1]


@pytest.mark.parametrize("engine", ["fsdp2", *(pytest.param(e, marks=pytest.mark.slow) for e in ("ddp", "zero3"))])
def test_a_context_reads_every_sequence_once(trained: Trained, engine: str) -> None:
    """Digests of the bins, in order: two ranks that share read what one alone would, and four what two would."""
    one = trained("single", 1).end
    assert trained(engine, 2, TWO).end.chain == one.chain
    assert trained(engine, 4, TWO).end.chain == one.chain
    assert trained(engine, 2, TWO).end.cursor == one.cursor


def test_a_first_compiled_step_that_fails_on_one_rank_is_a_matter_of_all(
    pool: RankPool, recipe_in, tmp_path: Path
) -> None:
    recipe = recipe_in(tmp_path)
    done = pool.run(2, DDP, [recipe, SHORTEST], fault="compiles_on_rank_0")
    assert done.statuses == (0, 0), done.output
    first, second = json.loads((tmp_path / "run/run.json").read_text())["compute"]
    assert first == "compute: ddp, 2 processes, cpu, float32, attention flash_cpu, not compiled"
    assert second == "compile: off, because a first compiled step failed (on this rank); compute.compile=off"

    done = pool.run(2, DDP, [recipe, SHORTEST, "compute.compile=on"], fault="compiles_on_rank_0")
    assert done.statuses == (2, 2), done.output
    assert all("is 'on', but a first compiled step failed (on this rank); set it to" in o for o in done.outputs)
