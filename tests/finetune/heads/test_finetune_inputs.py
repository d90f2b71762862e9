"""What a head reads is standardised by the training part, once, and the same wherever the run is continued."""

import json
from dataclasses import asdict, replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from finetune.heads.input_scale import InputScale, InputScaleRecord
from finetune.heads.settings import HeadSettings
from finetune.job import FineTuneJob
from zymogen.settings.json_file import validate

VECTORS = np.random.default_rng(0).normal(size=(50, 6)).astype(np.float32) * 1e-3 + np.float32(2.0)


@pytest.mark.parametrize("cuts", [[], [1], [20, 21]])
def test_the_scale_is_that_of_all_vectors_however_they_come(cuts: list[int]) -> None:
    scale = InputScale.of(np.split(VECTORS, cuts))
    wide = VECTORS.astype(np.float64)
    # float32 holds the mean to half of its last digit, 1.2e-7 of 2.0; the deviations are float64 until they are kept.
    assert np.abs(scale.mean - wide.mean(0)).max() <= 1.3e-7
    assert np.abs(scale.std / wide.std(0) - 1).max() < 1e-6


def correlated(count: int, width: int = 96) -> NDArray[np.float32]:
    """Vectors of which three directions hold nearly all that varies, about a mean of 2."""
    generator = np.random.default_rng(1)
    mixed = generator.normal(size=(3, width))
    few = generator.normal(size=(count, 3)) @ mixed
    return (few + 0.5 * generator.normal(size=(count, width)) + 2.0).astype(np.float32)


def test_whitened_vectors_vary_alike_in_every_direction() -> None:
    vectors = correlated(4000, width=40)
    standard, whitened = InputScale.of([vectors]), InputScale.of(np.split(vectors, [1, 900]), whitened=True)
    of_standard, of_whitened = (
        np.linalg.eigvalsh(np.cov(scale(torch.from_numpy(vectors)).double().numpy().T))
        for scale in (standard, whitened)
    )
    # With as many directions as channels, what had the variance e has e / (0.99 e + 0.01) now. The smallest e is about
    # 0.25 of a channel's variance of 3, or less for one that the three directions move more.
    assert of_standard.min() < 0.05
    assert np.abs(of_whitened - of_standard / (0.99 * of_standard + 0.01)).max() < 1e-3


def test_few_vectors_do_not_magnify_what_they_do_not_show() -> None:
    scale = InputScale.of([correlated(2000)[:20]], whitened=True)
    others = torch.from_numpy(correlated(2000)[20:])
    # Not shrunk, the 77 directions in which 20 vectors have no variance would be divided by rounding.
    assert scale(others).std(0).max() < 4


def test_whitening_is_not_rounded_under_autocast() -> None:
    vectors = torch.from_numpy(correlated(500))
    scale = InputScale.of([vectors.numpy()], whitened=True)
    with torch.autocast("cpu", torch.bfloat16):
        found = scale(vectors)
    assert torch.equal(found, scale(vectors))


def test_directions_come_back_from_json_as_they_were() -> None:
    scale = InputScale.of([correlated(200)], whitened=True)
    back = validate(InputScaleRecord, json.dumps(asdict(scale.record)).encode()).scale
    assert scale.directions is not None
    assert back.directions is not None
    assert scale.directions[0].shape == (64, 96)
    for here, there in zip(scale.directions, back.directions, strict=True):
        assert here.tobytes() == there.tobytes()
    with pytest.raises(ValueError, match="no 63 directions of 96 channels"):
        replace(scale.record, factors=scale.record.factors[1:])


@pytest.mark.parametrize(
    ("form", "kind", "is_scaled", "is_whitened"),
    [
        ("mlp", "frozen", True, True),
        ("mlp", "lora", True, True),
        ("mlp", "full", True, False),  # directions move where all of the encoder learns
        ("transformers", "frozen", False, False),
    ],
)
def test_vectors_are_whitened_unless_all_of_the_encoder_learns(
    form: str, kind: str, is_scaled: bool, is_whitened: bool
) -> None:
    recipe = SimpleNamespace(
        heads=HeadSettings(form=form), adaptation=SimpleNamespace(kind=kind), run=SimpleNamespace(seed=0)
    )
    job: Any = SimpleNamespace(
        recipe=recipe,
        assays=SimpleNamespace(drawn_of_training=lambda *_: range(40), reader=None),
        documents=lambda: None,
        features=SimpleNamespace(of=lambda *_: [correlated(40)]),
        engine=SimpleNamespace(device="cpu", is_main=True, on_main=lambda measured: measured()),
        _pooling_of_levels=lambda: {"sequence": "mean"},
    )
    found = FineTuneJob._inputs(job, None)
    assert list(found) == ["sequence"] * is_scaled
    assert all((scale.directions is not None) == is_whitened for scale in found.values())
