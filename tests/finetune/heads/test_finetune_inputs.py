"""What a head reads is standardised by the training part, once, and the same wherever the run is continued."""

import json

import numpy as np
import pytest
import torch

from finetune.heads.inputs import InputScale
from finetune.heads.settings import HeadSettings

VECTORS = np.random.default_rng(0).normal(size=(50, 6)).astype(np.float32) * 1e-3 + np.float32(2.0)


@pytest.mark.parametrize("cuts", [[], [1], [20, 21]])
def test_the_scale_is_that_of_all_vectors_however_they_come(cuts: list[int]) -> None:
    scale = InputScale.of(np.split(VECTORS, cuts))
    wide = VECTORS.astype(np.float64)
    # float32 holds the mean to half of its last digit, 1.2e-7 of 2.0; the deviations are float64 until they are kept.
    assert np.abs(scale.mean - wide.mean(0)).max() <= 1.3e-7
    assert np.abs(scale.std / wide.std(0) - 1).max() < 1e-6


def test_standardised_vectors_have_unit_spread() -> None:
    scaled = InputScale.of([VECTORS])(torch.from_numpy(VECTORS)).double()
    assert scaled.mean(0).abs().max() < 2e-4  # the mean's rounding, 1.2e-7, over deviations of 1e-3
    assert (scaled.std(0, correction=0) - 1).abs().max() < 1e-4


def test_a_channel_that_does_not_vary_stays_finite() -> None:
    constant = np.full((3, 2), 7.0, np.float32)
    assert torch.equal(InputScale.of([constant])(torch.from_numpy(constant)), torch.zeros(3, 2))


def test_it_comes_back_from_json_as_it_was() -> None:
    scale = InputScale.of([VECTORS])
    back = InputScale.from_dict(json.loads(json.dumps(scale.as_dict())))
    assert back.mean.tobytes() == scale.mean.tobytes()
    assert back.std.tobytes() == scale.std.tobytes()


def test_heads_of_transformers_read_vectors_as_they_are() -> None:
    assert HeadSettings().standardised
    assert not HeadSettings(form="transformers").standardised
    assert not HeadSettings(inputs="as_they_are").standardised
    with pytest.raises(ValueError, match=r"heads\.inputs is 'standardised' and heads\.form is 'transformers'"):
        HeadSettings(form="transformers", inputs="standardised")
