"""One step in one process: divide once (C4), clip, skip what is not finite, and a learning rate by tokens."""

import math
from dataclasses import replace
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from accelerate import Accelerator
from torch import Tensor

import zymogen.trainer.loop
from data.batches.batch import IGNORED, Batch, Targets
from data.batches.contents import MaskedContents
from data.batches.loader import Loader, Step
from data.batches.masking import BertMask
from data.corpus.reader import CorpusReader
from data.order.plan import Cursor
from data.settings import DataSettings
from pretrain.__main__ import main
from pretrain.model.masked_language_model import MaskedLanguageModel
from pretrain.model.settings import ModelSettings
from support.inputs.flat_batches import labels_of
from support.inputs.raw_store import Records, plan_over, write_store
from support.inputs.whole_models import build_model
from support.launching import end_of, lines
from zymogen.trainer.engine.engine import Engine
from zymogen.trainer.optimizer.kinds import build_optimizer, parameter_groups
from zymogen.trainer.optimizer.schedule import learning_rate
from zymogen.trainer.optimizer.settings import OptimizerSettings, ScheduleSettings
from zymogen.trainer.step import StepResult, train_step

BINS = 7
ONE = torch.ones(1)


@pytest.fixture(scope="module")
def reader(tmp_path_factory: pytest.TempPathFactory) -> CorpusReader:
    lengths = np.random.default_rng(0).integers(1, 110, 200)
    return CorpusReader([write_store(tmp_path_factory.mktemp("step"), lengths)])


@pytest.fixture(scope="module")
def engine() -> Engine:
    return Engine(Accelerator(cpu=True))


@pytest.fixture
def model() -> MaskedLanguageModel:
    return build_model(ModelSettings(preset="esm2_60k"), seed=1)


def stream(reader: CorpusReader, bins_per_forward: int) -> Loader:
    settings = DataSettings(
        sources=("-",), crop_tokens=128, bin_tokens=128, bins_per_step=BINS, bins_per_forward=bins_per_forward
    )
    return Loader(
        MaskedContents(reader, settings, BertMask(settings.mask), 0),
        plan_over(reader, Records(200), settings),
        Cursor(),
        0,
        0,
        1,
    )


def without_targets(batch: Batch) -> Batch:
    return replace(batch, targets=(Targets(batch.targets[0].slots[:0], batch.targets[0].labels[:0]),))


class Kept:
    """Stands for an optimizer: keeps the gradients that it is given, and the learning rate."""

    def __init__(self, model: torch.nn.Module) -> None:
        self.model = model
        self.param_groups = [{"lr": 0.0}]
        self.gradients: dict[str, Tensor] = {}

    def step(self) -> None:
        self.gradients = {name: p.grad.clone() for name, p in self.model.named_parameters()}

    def zero_grad(self, set_to_none: bool) -> None:
        self.model.zero_grad(set_to_none=set_to_none)


def taken(step: Step, model: MaskedLanguageModel, engine: Engine, clip_norm: float = 1e9) -> tuple[Kept, StepResult]:
    kept = Kept(model)
    result = train_step(
        step, model, kept, engine, bins_per_step=BINS, weights=ONE, clip_norm=clip_norm, learning_rate=0.5
    )
    assert all(p.grad is None for p in model.parameters())
    return kept, result.to_host()


def of_one_big_batch(model: MaskedLanguageModel, batch: Batch) -> tuple[float, dict[str, Tensor]]:
    """Torch's own mean cross-entropy over all targets at once, and its gradients."""
    loss = F.cross_entropy(model.logits(batch), labels_of(batch), ignore_index=IGNORED)
    loss.backward()
    gradients = {name: p.grad.clone() for name, p in model.named_parameters()}
    model.zero_grad()
    return float(loss.detach()), gradients


def distance(a: dict[str, Tensor], b: dict[str, Tensor]) -> float:
    """Norm of the difference, relative to the norm of `b`."""
    assert a.keys() == b.keys()
    return math.sqrt(sum(float((a[n] - b[n]).double().square().sum()) for n in b)) / norm(b)


def norm(gradients: dict[str, Tensor]) -> float:
    return math.sqrt(sum(float(g.double().square().sum()) for g in gradients.values()))


@pytest.mark.parametrize("bins_per_forward", [1, 2, 3, 7])
def test_the_gradient_is_that_of_one_big_batch(
    reader: CorpusReader, engine: Engine, model: MaskedLanguageModel, bins_per_forward: int
) -> None:
    ((whole,), step) = next(stream(reader, BINS)).batches, next(stream(reader, bins_per_forward))
    counts = [int(batch.counts) for batch in step.batches]
    assert len(counts) == math.ceil(BINS / bins_per_forward)
    loss, gradients = of_one_big_batch(model, whole)
    kept, result = taken(step, model, engine)
    assert distance(kept.gradients, gradients) < 1e-6
    assert result.losses == [pytest.approx(loss, rel=1e-6)]
    assert result.grad_norm == pytest.approx(norm(gradients), rel=1e-5)
    assert result.counts == [sum(counts)] == [len(whole.targets[0].slots)]
    assert result.digests == whole.digests.tolist()
    assert result.applied
    assert result.loss_scale == 1
    assert kept.param_groups == [{"lr": 0.5}]


def test_control_a_mean_of_means_is_far_off(reader: CorpusReader, model: MaskedLanguageModel) -> None:
    ((whole,), step) = next(stream(reader, BINS)).batches, next(stream(reader, 1))
    assert len({int(batch.counts) for batch in step.batches}) > 3  # unequal, or nothing here says anything
    _, gradients = of_one_big_batch(model, whole)
    each = [of_one_big_batch(model, batch)[1] for batch in step.batches]
    of_means = {name: sum(gradient[name] for gradient in each) / BINS for name in gradients}
    assert distance(of_means, gradients) > 1e-2


def test_a_micro_batch_without_targets_adds_nothing(
    reader: CorpusReader, engine: Engine, model: MaskedLanguageModel
) -> None:
    step = next(stream(reader, 1))
    emptied = [without_targets(b) if i in (2, 6) else b for i, b in enumerate(step.batches)]
    whole = next(stream(reader, BINS)).batches[0]
    labels = labels_of(whole).view(BINS, -1)
    labels[[2, 6]] = IGNORED
    slots = (labels.flatten() != IGNORED).nonzero()[:, 0]
    loss, gradients = of_one_big_batch(model, replace(whole, targets=(Targets(slots, labels.flatten()[slots]),)))
    kept, result = taken(replace(step, batches=tuple(emptied)), model, engine)
    assert distance(kept.gradients, gradients) < 1e-6
    assert result.losses == [pytest.approx(loss, rel=1e-6)]
    assert result.counts == [int((labels != IGNORED).sum())]


def test_a_step_without_any_target(reader: CorpusReader, engine: Engine, model: MaskedLanguageModel) -> None:
    step = next(stream(reader, 2))
    kept, result = taken(replace(step, batches=tuple(map(without_targets, step.batches))), model, engine)
    assert (result.losses, result.counts, result.grad_norm) == ([None], [0], 0.0)
    assert all((gradient == 0).all() for gradient in kept.gradients.values())


def test_clipping_scales_the_whole_gradient(reader: CorpusReader, engine: Engine, model: MaskedLanguageModel) -> None:
    step = next(stream(reader, 1))
    free, before = taken(step, model, engine)
    clipped, result = taken(step, model, engine, clip_norm=before.grad_norm / 8)
    assert result.grad_norm == before.grad_norm == pytest.approx(norm(free.gradients), rel=1e-5)
    assert norm(clipped.gradients) == pytest.approx(before.grad_norm / 8, rel=1e-4)
    assert distance({n: 8 * g for n, g in clipped.gradients.items()}, free.gradients) < 1e-4
    loose, _ = taken(step, model, engine, clip_norm=before.grad_norm * 1.01)
    assert all(torch.equal(loose.gradients[n], free.gradients[n]) for n in free.gradients)


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_gradient_that_is_not_finite_touches_nothing(
    reader: CorpusReader, engine: Engine, model: MaskedLanguageModel, value: float
) -> None:
    optimizer = build_optimizer(parameter_groups(model, OptimizerSettings()), OptimizerSettings())
    bias = model.get_parameter("head.bias")

    def take(step: Step) -> StepResult:
        return train_step(
            step, model, optimizer, engine, bins_per_step=BINS, weights=ONE, clip_norm=1.0, learning_rate=1e-3
        ).to_host()

    first, second = islice(stream(reader, 1), 2)
    take(first)
    weights = {name: p.detach().clone() for name, p in model.named_parameters()}
    moments = [{k: torch.as_tensor(v).clone() for k, v in cell.items()} for cell in optimizer.state.values()]
    handle = bias.register_hook(lambda gradient: gradient * 0 + value)
    result = take(second)
    handle.remove()
    assert not result.applied
    assert not math.isfinite(result.grad_norm)
    assert result.digests == torch.cat([batch.digests for batch in second.batches]).tolist()
    assert all(torch.equal(p, weights[name]) for name, p in model.named_parameters())
    assert all(p.grad is None for p in model.parameters())
    for cell, before in zip(optimizer.state.values(), moments, strict=True):
        assert all(torch.equal(torch.as_tensor(cell[k]), before[k]) for k in before)
    assert take(second).applied
    assert not torch.equal(bias, weights["head.bias"])


@pytest.fixture
def poisoned(monkeypatch: pytest.MonkeyPatch) -> set[int]:
    """Numbers of the steps of a run, from 1, whose gradient shall not be finite."""
    numbers: set[int] = set()
    calls = iter(range(1, 1000))

    def with_poison(step: Step, model: torch.nn.Module, *rest: object, **settings: object) -> StepResult:
        if next(calls) not in numbers:
            return train_step(step, model, *rest, **settings)
        handle = next(model.parameters()).register_hook(lambda gradient: gradient / 0)
        try:
            return train_step(step, model, *rest, **settings)
        finally:
            handle.remove()

    monkeypatch.setattr(zymogen.trainer.loop, "train_step", with_poison)
    return numbers


@pytest.mark.slow
def test_skipped_steps_are_counted_and_their_tokens_too(recipe_in, tmp_path: Path, poisoned: set[int]) -> None:
    clean, skipping = tmp_path / "clean", tmp_path / "skipping"
    assert main([str(recipe_in(clean)), "schedule.total_tokens=5_900"]) == 0
    assert end_of(clean / "run").step == 8
    poisoned |= {10, 12, 13}  # the second run's 2nd, 4th and 5th: never three in a row
    assert main([str(recipe_in(skipping)), "schedule.total_tokens=5_900"]) == 0
    a, b = end_of(clean / "run"), end_of(skipping / "run")
    assert (a.step, a.tokens_seen, a.chain, a.cursor) == (b.step, b.tokens_seen, b.chain, b.cursor)
    metrics = [line for line in lines(skipping / "run/metrics.jsonl") if "loss" in line]
    assert [line["skipped_steps"] for line in metrics] == [0, 1, 1, 2, 3, 3, 3, 3]
    assert [line["grad_norm"] is None for line in metrics] == [False, True, False, True, True, False, False, False]
    assert not torch.equal(a.tensors["encoder.embedding.weight"], b.tensors["encoder.embedding.weight"])


def test_learning_rate_of_esm2_by_hand() -> None:
    schedule = ScheduleSettings()
    warmup = 4_194_304_000  # 2,000 steps of 2**21 tokens
    by_hand = {
        0: 0.0,
        2**21: 4e-4 / 2000,
        warmup // 2: 2e-4,
        warmup: 4e-4,
        (warmup + 900_000_000_000) // 2: 2.2e-4,
        900_000_000_000: 4e-5,
        1_000_000_000_000: 4e-5,
        2_000_000_000_000: 4e-5,
    }
    for tokens, rate in by_hand.items():
        assert learning_rate(schedule, tokens) == pytest.approx(rate, rel=1e-9)
    assert learning_rate(schedule, warmup - 1) < learning_rate(schedule, warmup) > learning_rate(schedule, warmup + 1)


def test_learning_rate_without_warm_up_and_without_decay() -> None:
    schedule = ScheduleSettings(peak_lr=1.0, total_tokens=1000, warmup_tokens=0, decay_end=0.5, final_lr=0.0)
    assert [learning_rate(schedule, t) for t in (0, 125, 250, 500, 999)] == [1.0, 0.75, 0.5, 0.0, 0.0]
    constant = ScheduleSettings(peak_lr=1.0, total_tokens=1000, warmup_tokens=100, final_lr=1.0)
    assert [learning_rate(constant, t) for t in (50, 100, 500, 2000)] == [0.5, 1.0, 1.0, 1.0]


def test_defaults_are_esm2s() -> None:
    optimizer, data = OptimizerSettings(), DataSettings(sources=("-",))
    assert (optimizer.betas, optimizer.eps, optimizer.weight_decay) == ((0.9, 0.98), 1e-8, 0.01)
    assert optimizer.clip_norm == 1.0
    assert data.bin_tokens * data.bins_per_step == 2_097_152
    assert (data.mask.select_prob, data.mask.mask_prob, data.mask.random_prob) == (0.15, 0.8, 0.1)
