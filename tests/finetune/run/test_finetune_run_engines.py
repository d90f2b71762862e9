"""Fine-tuning on a table under every engine ends where one process does: C4, C5 and C11 of docs/contracts.md.

Tasks of sequences and of residues learn together, on heads alone, with adapters, and with all weights. The yardstick is
that of `test_engines`: how far one process ends from itself when bins are grouped otherwise.
"""

from functools import partial

import pytest

from support.assays.small_run import Rows, write
from support.jobs import fine_tuning_job
from support.kept_runs import STEP_1, Ended, Trained, distances, yardstick
from support.launching import largest_difference, lines
from support.rank_pool import RankPool

pytestmark = [pytest.mark.launch, pytest.mark.xdist_group("finetune")]

NO_CHANGE = ()
FROZEN, LORA, FULL = (), ("adaptation.kind=lora",), ("adaptation.kind=full",)
UNCACHED = ("adaptation.cache_gb=0",)
TWO = ("parallel.context=2",)
CELLS = [
    *((engine, 2, FROZEN) for engine in ("ddp", "zero3")),
    ("fsdp2", 2, LORA),
    ("ddp", 2, (*LORA, *TWO)),
    *(pytest.param(engine, 2, FROZEN, marks=pytest.mark.prove) for engine in ("fsdp2", "zero1", "zero2")),
    *(pytest.param(engine, 2, LORA, marks=pytest.mark.prove) for engine in ("ddp", "zero1", "zero2", "zero3")),
    pytest.param("zero2", 2, UNCACHED, marks=pytest.mark.prove),
    pytest.param("zero3", 2, FULL, marks=pytest.mark.prove),
    pytest.param("ddp", 2, (*UNCACHED, *TWO), marks=pytest.mark.prove),
    *(pytest.param(engine, 2, FULL, marks=pytest.mark.prove) for engine in ("ddp", "fsdp2", "zero1", "zero2")),
    *(pytest.param("ddp", 2, (*kind, *TWO), marks=pytest.mark.prove) for kind in (FROZEN, FULL)),
    *(
        pytest.param(engine, 3, kind, marks=pytest.mark.prove)
        for engine in ("ddp", "fsdp2", "zero1", "zero2", "zero3")
        for kind in (FROZEN, LORA, FULL)
    ),
    *(pytest.param("ddp", 4, (*kind, *TWO), marks=pytest.mark.prove) for kind in (FROZEN, LORA, FULL)),
]


@pytest.fixture(scope="module")
def tuned(pool: RankPool, tmp_path_factory: pytest.TempPathFactory) -> Trained:
    """The end of a run of 16 steps; each is made once."""
    return Trained(pool, write, tmp_path_factory, program=fine_tuning_job.__name__)


@pytest.mark.parametrize(("engine", "processes", "words"), CELLS)
def test_every_engine_ends_where_one_process_ends(
    tuned: Trained, engine: str, processes: int, words: tuple[str, ...]
) -> None:
    model = [word for word in words if word not in TWO]
    one = tuned("single", 1, model, NO_CHANGE)
    assert largest_difference(one.end, tuned("single", 1, model, STEP_1).end) > 1e-3  # parameters moved
    of_weights, of_losses = yardstick(tuned, model, NO_CHANGE)
    found = distances(one, other := tuned(engine, processes, words, NO_CHANGE))
    print(engine, processes, words, found, "yardstick", of_weights, of_losses)
    assert of_weights < 5e-6
    assert found[0] <= 3 * of_weights
    assert found[1] <= 3 * of_losses
    assert scores_of(other) == pytest.approx(scores_of(one), abs=1e-4)
    b = [float(value.norm()) for name, value in other.end.tensors.items() if "lora_B" in name and "/" not in name]
    assert bool(b) == ("adaptation.kind=lora" in words)
    assert min(b, default=1.0) > 1e-3


def scores_of(ended: Ended) -> dict[tuple[int, str, str], float]:
    """Every number of every validation of a run."""
    found = {
        (line["step"], task, name): number
        for line in lines(ended.folder / "run/metrics.jsonl")
        for task, numbers in line.get("validation", {}).items()
        for name, number in numbers.items()
    }
    last = ended.end.step
    assert {step for step, _, _ in found} == {*range(5, last, 5), last}
    assert last >= 15
    assert {"affinity_a", "binds", "state", "all_tasks"} < {task for _, task, _ in found}
    return found


def test_control_counts_of_each_rank_alone_are_far_off(tuned: Trained) -> None:
    wrong = tuned("ddp", 2, FROZEN, NO_CHANGE, fault="local_counts")
    assert (
        largest_difference(tuned("single", 1, FROZEN, NO_CHANGE).end, wrong.end)
        > 100 * yardstick(tuned, FROZEN, NO_CHANGE)[0]
    )


@pytest.fixture(scope="module")
def tuned_on_few(pool: RankPool, tmp_path_factory: pytest.TempPathFactory) -> Trained:
    """The same on a table whose residues are labelled in three proteins."""

    def few(rows: Rows) -> Rows:
        return [row | {"state": row["state"] if number < 12 else ""} for number, row in enumerate(rows)]

    return Trained(pool, partial(write, change=few), tmp_path_factory, program=fine_tuning_job.__name__)


@pytest.mark.parametrize(
    ("engine", "processes"),
    [
        *(("fsdp2", 2), ("zero3", 2)),
        *(pytest.param(each, 3, marks=pytest.mark.prove) for each in ("ddp", "fsdp2", "zero1", "zero2", "zero3")),
    ],
)
def test_a_rank_without_a_label_of_a_task_holds_up_nobody(tuned_on_few: Trained, engine: str, processes: int) -> None:
    """A step has a bin for each rank. In most only one rank has a label of residues; one bin is all that validates."""
    words = (*LORA, f"data.bins_per_step={processes}", "split.fractions=[0.96, 0.02, 0.02]")
    length = ("schedule.total_tokens=4_000",)
    one = tuned_on_few("single", 1, words, length)
    labelled = steps_with_a_loss_of_residues(one)
    assert 0 < sum(labelled) < len(labelled) / 2
    of_weights, of_losses = distances(one, other := tuned_on_few(engine, processes, words, length))
    assert of_weights < 5e-6
    assert of_losses < 5e-6
    assert steps_with_a_loss_of_residues(other) == labelled


def steps_with_a_loss_of_residues(ended: Ended) -> list[bool]:
    """Of every step, whether it tells a loss of that task; one without a label of it tells none, not 0."""
    steps = [line for line in lines(ended.folder / "run/metrics.jsonl") if "loss" in line]
    assert all(line.get("loss/state", 1.0) > 0 for line in steps)
    return ["loss/state" in line for line in steps]
