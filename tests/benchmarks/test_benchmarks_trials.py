"""Trials of how a matrix moves and of what an embedding sees: each does what its source says, and nothing else."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from benchmarks.learning.around import NAME, Around, as_trained
from benchmarks.learning.moves import MOVES, Tried
from benchmarks.learning.scored import score
from benchmarks.learning.trials import NAMES, install
from pretrain.model.build import initializers
from pretrain.model.settings import ModelSettings
from pretrain.trained_model import masked_language_model, open_trained_model
from support.places import ROOT
from zymogen.trainer.optimizer.muon import Muon, newton_schulz

RATE, DECAY = 0.1, 0.5
BLOCKS = 2


def weights_after(kind: type[Muon], gradients: list[Tensor]) -> list[Tensor]:
    """The weights before the first step and after each, of a matrix of two square maps ``(8, 4)``."""
    matrix = nn.Parameter(torch.randn(8, 4, generator=torch.Generator().manual_seed(1)))
    groups = [{"params": [matrix], "weight_decay": DECAY, "blocks": BLOCKS, "lr": RATE}]
    optimizer = kind(groups, momentum=0.0, newton_schulz="float32", betas=(0.9, 0.95), eps=1e-8)
    found = [matrix.detach().clone()]
    for gradient in gradients:
        matrix.grad = gradient.clone()
        optimizer.step()
        found.append(matrix.detach().clone())
    if isinstance(optimizer, Tried):
        optimizer.take_means()
        found.append(matrix.detach().clone())
    return found


@pytest.fixture
def gradients() -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(8, 4, generator=generator) * torch.logspace(0, 1, 8)[:, None] for _ in range(3)]


def factors(gradient: Tensor) -> Tensor:
    """Without momentum, what a gradient is orthogonalised to, map by map."""
    return newton_schulz(gradient.view(BLOCKS, 4, 4), torch.float32)


def moved(before: Tensor, update: Tensor, rms: float = 0.4) -> Tensor:
    """0.2 √max(A, B) is 0.4 of a map of 4 by 4."""
    return (1 - RATE * DECAY) * before - RATE * rms * update.reshape(8, 4)


def test_without_a_trial_it_is_muon(gradients: list[Tensor], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Tried, "asked", {})
    plain, tried = weights_after(Muon, gradients), weights_after(Tried, gradients)
    assert all(torch.equal(ours, theirs) for ours, theirs in zip(plain, tried, strict=False))
    torch.testing.assert_close(plain[1], moved(plain[0], factors(gradients[0])))


def test_normuon_divides_rows_and_keeps_the_length_of_each_map(
    gradients: list[Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Tried, "asked", {"normuon": 0.75})
    found, squares = weights_after(Tried, gradients), torch.zeros(BLOCKS, 4)
    for number, gradient in enumerate(gradients):
        factor = factors(gradient)
        squares = 0.75 * squares + 0.25 * factor.square().mean(2)
        even = factor / squares.sqrt()[:, :, None]
        even *= (factor.square().sum((1, 2)) / even.square().sum((1, 2))).sqrt()[:, None, None]
        torch.testing.assert_close(found[number + 1], moved(found[number], even))


def test_cautious_decay_spares_what_moves_away_from_zero(
    gradients: list[Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Tried, "asked", {"cautious": 1.0})
    before, after, *_ = weights_after(Tried, gradients[:1])
    update = factors(gradients[0]).reshape(8, 4)
    away = update * before < 0
    assert 0 < away.sum() < 32
    torch.testing.assert_close(after[~away], moved(before, update)[~away])
    torch.testing.assert_close(after[away], (before - RATE * 0.4 * update)[away])


@pytest.mark.parametrize(("rows", "columns", "factor"), [(4, 4, 1.0), (8, 4, 1.0), (4, 8, 0.5)])
def test_the_spectral_rate_slows_wide_maps(
    rows: int, columns: int, factor: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    gradient = torch.randn(rows, columns, generator=torch.Generator().manual_seed(2))
    distances = []
    for asked in ({}, {"spectral": 1.0}):
        monkeypatch.setattr(Tried, "asked", asked)
        matrix = nn.Parameter(torch.zeros(rows, columns))
        groups = [{"params": [matrix], "weight_decay": 0.0, "blocks": 1, "lr": RATE}]
        optimizer = Tried(groups, momentum=0.0, newton_schulz="float32", betas=(0.9, 0.95), eps=1e-8)
        matrix.grad = gradient
        optimizer.step()
        distances.append(matrix.detach().norm().item())
    assert distances[1] == pytest.approx(factor * distances[0])


def test_the_average_is_that_of_the_weights_after_each_step(
    gradients: list[Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Tried, "asked", {"average": 0.8})
    _, first, second, third, mean = weights_after(Tried, gradients)
    torch.testing.assert_close(mean, 0.8 * (0.8 * first + 0.2 * second) + 0.2 * third)


def test_a_trial_that_does_not_exist_is_refused() -> None:
    assert set(MOVES) < set(NAMES)
    with pytest.raises(ValueError, match=r"there is no trial 'muonclip'; there are fan_in, .*normuon"):
        install("muonclip=1")


def test_an_embedding_sees_the_places_around_it_in_its_own_document() -> None:
    embedding = Around(5, 3, 2)
    torch.nn.init.normal_(embedding.around)
    tokens, documents = torch.tensor([0, 1, 2, 3, 4, 1]), torch.tensor([0, 0, 0, 0, 1, 1])
    embedding.documents = documents
    found, own = embedding(tokens), embedding.weight[tokens]
    next_one, next_but_one, last_one, last_but_one = embedding.around
    expected = [
        own[0] + own[1] * next_one + own[2] * next_but_one,
        own[1] + own[2] * next_one + own[3] * next_but_one + own[0] * last_one,
        own[2] + own[3] * next_one + own[1] * last_one + own[0] * last_but_one,
        own[3] + own[2] * last_one + own[1] * last_but_one,
        own[4] + own[5] * next_one,
        own[5] + own[4] * last_one,
    ]
    torch.testing.assert_close(found, torch.stack(expected))


@pytest.mark.prove
def test_runs_with_trials_are_scored_as_they_were_trained(recipe_in, tmp_path: Path) -> None:
    """The mean of the weights is what is exported; an embedding that no export has is scored all the same."""
    recipe = str(recipe_in(tmp_path))
    more = ["model.preset=modern_60k", "optimizer.name=muon", "model.start=neighbours", "schedule.total_tokens=4_000"]
    losses = {}
    for trials in (",", "average=0.999999", "around=2"):
        run = tmp_path / trials
        words = [sys.executable, "-m", "benchmarks.learning.trials", trials, recipe, *more, f"run.directory={run}"]
        done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=200)
        assert done.returncode == 0, done.stdout + done.stderr
        losses[trials] = score(run, str(run)).losses.sum()
    assert len(set(losses.values())) == 3
    models = {
        name: as_trained(masked_language_model(open_trained_model(tmp_path / name)), tmp_path / name) for name in losses
    }
    around = {name: dict(model.named_parameters()).get(NAME) for name, model in models.items()}
    assert {name for name, weight in around.items() if weight is not None and weight.any()} == {"around=2"}
    # A mean that hardly moves stays where the first step ended: nearer to the first weights than the last one is.
    first = initializers(ModelSettings(preset="modern_60k", start="neighbours"), 0)[1]
    name = "encoder.layers.1.feed_forward.down.weight"
    last, mean = (
        (models[trials].get_parameter(name) - first[name]()).norm().item() for trials in (",", "average=0.999999")
    )
    assert 0 < mean < last / 2
