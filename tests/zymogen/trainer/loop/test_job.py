"""A second job through the same loop: two objectives with weights, half of the labels missing.

It holds to C4, C5, C8 and C11 of docs/contracts.md: `support.jobs.length_job` ends alike in every world, and killed
and resumed it ends to the bit where it would have.
"""

import math
import re
from collections import Counter
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from accelerate import Accelerator
from torch import Tensor

from data.batches.batch import Batch
from data.batches.loader import Loader, Step
from data.corpus.reader import CorpusReader
from data.order.plan import Cursor
from data.settings import DataSettings
from pretrain.model.initialization import initialise
from pretrain.model.presets import PRESETS
from support.inputs.raw_store import Records, plan_over, write_store
from support.jobs import length_job
from support.jobs.length_job import LONG, LengthContents, LengthModel
from support.kept_runs import STEP_1, STEPS_16, Trained, config, distances, yardstick
from support.launching import bit_equal, end_of, largest_difference, lines
from support.places import ROOT
from support.rank_pool import RankPool
from zymogen.trainer.engine.engine import Engine
from zymogen.trainer.step import StepResult, train_step

PROGRAM = length_job.__name__
TWO = ("parallel.context=2",)
SPREADS = [("ddp", ()), pytest.param("ddp", TWO, marks=pytest.mark.prove), ("fsdp2", TWO)]
BINS = 7


def launches(test: Any) -> Any:
    """Marks of a test that runs in the kept processes."""
    return pytest.mark.launch(pytest.mark.xdist_group("engines")(test))


# One step -----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def engine() -> Engine:
    return Engine(Accelerator(cpu=True))


@pytest.fixture
def model() -> LengthModel:
    model = LengthModel(PRESETS["esm2_60k"])
    initialise(model, 1)
    return model


@pytest.fixture(scope="module")
def reader(tmp_path_factory: pytest.TempPathFactory) -> CorpusReader:
    lengths = np.random.default_rng(0).integers(1, 80, 200)
    return CorpusReader([write_store(tmp_path_factory.mktemp("job"), lengths)])


def step_of(reader: CorpusReader, bins_per_forward: int) -> tuple[Step, list[int]]:
    """The first step, and the sample id of each of its documents in the order of `Batch.spans`."""
    settings = DataSettings(
        sources=("-",), crop_tokens=128, bin_tokens=128, bins_per_step=BINS, bins_per_forward=bins_per_forward
    )
    plan = plan_over(reader, Records(200), settings)
    bins = [bin_ for bin_, _ in islice(plan.bins(Cursor()), BINS)]
    step = next(Loader(LengthContents(reader, settings), plan, Cursor(), 0, 0, 1))
    return step, [sample for place in step.bins for sample in bins[place].samples.tolist()]


def by_hand(model: LengthModel, batch: Batch, samples: list[int], weights: tuple[float, ...]) -> tuple[Tensor, Counter]:
    """The loss of all documents at once from their lengths alone, and how many have which label."""
    losses: dict[str, list[Tensor]] = {"length": [], "is_long": []}
    vectors = model.encoder(batch)
    for (start, end), sample in zip(batch.spans, samples, strict=True):
        length, is_long = model.head(vectors[start])
        if sample % 2:
            losses["is_long"].append(F.softplus(-is_long if end - start >= LONG else is_long))
        else:
            losses["length"].append((length - math.log((end - start) / LONG)) ** 2)
    means = [torch.stack(each).mean() for each in losses.values()]
    return sum(w * m for w, m in zip(weights, means, strict=True)), Counter({n: len(x) for n, x in losses.items()})


class Kept:
    """Stands for an optimizer: keeps the gradients that it is given."""

    def __init__(self, model: torch.nn.Module) -> None:
        self.model = model
        self.param_groups = [{"lr": 0.0}, {"lr": 0.0, "lr_scale": 0.5}]
        self.gradients: dict[str, Tensor] = {}

    def step(self) -> None:
        self.gradients = {name: p.grad.clone() for name, p in self.model.named_parameters()}

    def zero_grad(self, set_to_none: bool) -> None:
        self.model.zero_grad(set_to_none=set_to_none)


def taken(step: Step, model: LengthModel, engine: Engine, weights: tuple[float, ...]) -> tuple[Kept, StepResult]:
    kept = Kept(model)
    how = {"bins_per_step": BINS, "clip_norm": 1e9, "learning_rate": 0.5}
    return kept, train_step(step, model, kept, engine, weights=torch.tensor(weights), **how).to_host()


def distance(a: dict[str, Tensor], b: dict[str, Tensor]) -> float:
    """Norm of the difference, relative to the norm of `b`."""
    assert a.keys() == b.keys()
    norms = [
        math.sqrt(sum(float(t.double().square().sum()) for t in of)) for of in ([a[n] - b[n] for n in b], b.values())
    ]
    return norms[0] / norms[1]


@pytest.mark.parametrize("bins_per_forward", [1, 3, 7])
def test_each_objective_is_divided_by_its_own_count_and_weighed(
    reader: CorpusReader, engine: Engine, model: LengthModel, bins_per_forward: int
) -> None:
    (whole,), samples = (found := step_of(reader, BINS))[0].batches, found[1]
    loss, labels = by_hand(model, whole, samples, (1.0, 0.5))
    assert whole.counts.tolist() == [labels["length"], labels["is_long"]]
    assert min(whole.counts.tolist()) > 5
    assert labels.total() == len(samples)  # half of the labels of either objective are missing
    loss.backward()
    gradients = {name: p.grad.clone() for name, p in model.named_parameters()}
    model.zero_grad()
    kept, result = taken(step_of(reader, bins_per_forward)[0], model, engine, (1.0, 0.5))
    assert distance(kept.gradients, gradients) < 1e-6
    assert result.losses[0] + 0.5 * result.losses[1] == pytest.approx(float(loss.detach()), rel=1e-6)
    assert result.counts == whole.counts.tolist()
    assert [group["lr"] for group in kept.param_groups] == [0.5, 0.25]
    # Control: with another weight it is far off.
    assert distance(taken(step_of(reader, 7)[0], model, engine, (1.0, 1.0))[0].gradients, gradients) > 1e-2


def test_a_share_has_each_objectives_own_targets(reader: CorpusReader) -> None:
    (whole,) = step_of(reader, BINS)[0].batches
    shares = [whole.share(rank, 4) for rank in range(4)]
    assert sum(share.counts for share in shares).tolist() == whole.counts.tolist()
    assert len({tuple(share.counts.tolist()) for share in shares}) > 1
    for objective, targets in enumerate(whole.targets):
        of_shares = [share.targets[objective] for share in shares]
        assert torch.equal(torch.cat([t.slots for t in of_shares]), targets.slots)
        assert torch.equal(torch.cat([t.labels for t in of_shares]), targets.labels)
    assert whole.idle().counts.tolist() == [0, 0]
    assert whole.idle().targets[1].labels.dtype == torch.float32
    moved = whole.to("meta")
    assert {t.device.type for of in moved.targets for t in (of.slots, of.labels)} == {"meta"}


# Whole runs ---------------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def job_trained(pool: RankPool, recipe_in, tmp_path_factory: pytest.TempPathFactory) -> Trained:
    """The end of a run of 16 steps; each is made once."""
    return Trained(pool, recipe_in, tmp_path_factory, program=PROGRAM)


@launches
@pytest.mark.parametrize(("engine", "overrides"), SPREADS)
def test_every_world_ends_where_one_process_ends(job_trained: Trained, engine: str, overrides: tuple[str, ...]) -> None:
    one = job_trained("single", 1)
    assert largest_difference(one.end, job_trained("single", 1, length=STEP_1).end) > 1e-3  # parameters moved
    of_weights, of_losses = yardstick(job_trained)
    assert of_weights < 2e-6
    weights, losses = distances(one, job_trained(engine, 2, overrides))
    assert weights <= 3 * of_weights
    assert losses <= 3 * of_losses


@launches
def test_control_counts_of_each_rank_alone_are_far_off(job_trained: Trained) -> None:
    """The fault divides the first objective's losses by each rank's own count."""
    wrong = job_trained("ddp", 2, fault="local_counts")
    assert largest_difference(job_trained("single", 1).end, wrong.end) > 100 * yardstick(job_trained)[0]


@launches
@pytest.mark.parametrize(("engine", "overrides"), [pytest.param("ddp", (), marks=pytest.mark.prove), ("fsdp2", TWO)])
def test_killed_and_resumed_it_ends_to_the_bit_where_it_would_have(
    pool: RankPool, recipe_in, tmp_path: Path, job_trained: Trained, engine: str, overrides: tuple[str, ...]
) -> None:
    words = [recipe_in(tmp_path), *STEPS_16, *overrides, "run.checkpoint_every=4"]
    run = tmp_path / "run"

    def past_a_checkpoint() -> bool:
        return len(lines(run / "metrics.jsonl")) >= 10 and any(run.glob("checkpoints/step-*"))

    pool.run_and_kill(2, config(engine), words, past_a_checkpoint, program=PROGRAM)
    assert end_of(run).step in (4, 8, 12)  # a save or two may be on their way
    resumed = pool.run(2, config(engine), words, program=PROGRAM)
    assert resumed.status == 0, resumed.output
    assert len(lines(run / "attempts.jsonl")) == 3  # the first one did not come to say how it ended
    whole, end = job_trained(engine, 2, overrides).end, end_of(run)
    assert (end.step, end.chain, end.cursor) == (whole.step, whole.chain, whole.cursor)
    assert bit_equal(end, whole)


@launches
def test_it_learns(job_trained: Trained) -> None:
    long = job_trained("single", 1, ["schedule.peak_lr=3e-3"], ["schedule.total_tokens=60_000"])
    assert sum(long.losses[-8:]) < 0.5 * sum(long.losses[:8])


# The page that shows it ---------------------------------------------------------------------------


def test_the_page_shows_the_file_that_is_tested() -> None:
    (shown,) = re.findall(r"```python\n(.*?)```", (ROOT / "docs/jobs.md").read_text(), re.DOTALL)
    assert shown == Path(length_job.__file__).read_text()
