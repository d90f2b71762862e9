"""The course of a run: what metrics.jsonl says of its losses, through stops, lost steps and numbers that are none."""

import math
from typing import Any

import numpy as np
import pytest

from pretrain.evaluate.training_curve import training_curve, trend, trend_of_validations


def step(number: int, loss: float | None, attempt: int = 1, **more: Any) -> dict[str, Any]:
    return {"step": number, "tokens": 100 * number, "attempt": attempt, "loss": loss, "skipped_steps": 0.0, **more}


def validated(number: int, hidden: float | None, copied: float, attempt: int = 1) -> dict[str, Any]:
    scores = {"mask_all": {"perplexity": hidden}, "80_10_10": {"perplexity": copied}}
    return {"step": number, "tokens": 100 * number, "attempt": attempt, "validation": scores}


def test_losses_by_tokens() -> None:
    lines = [step(1, 3.0), step(2, None), validated(2, 18.0, 9.0), {"step": 2, "tokens": 200, "attempt": 1, "x": 1}]
    found = training_curve([*lines, step(3, 2.5, skipped_steps=2.0)])
    assert [tokens for tokens, _ in found.training] == [100, 200, 300]
    assert (found.training[0][1], found.training[2][1]) == (3.0, 2.5)
    assert math.isnan(found.training[1][1])  # null stands for NaN
    assert found.validations == ((200, math.log(18.0)),)
    assert (found.steps, found.skipped_steps) == (3, 2)
    assert math.isnan(training_curve([validated(1, None, 2.0)]).validations[0][1])
    assert training_curve([]) == training_curve([{"step": 0, "tokens": 0, "attempt": 1}])


def test_a_step_without_targets_has_no_loss_and_one_that_diverged_has() -> None:
    lines = [step(1, 3.0, targets=9.0), step(2, None, targets=0.0), step(3, None, targets=9.0)]
    (_, first), (tokens, diverged) = training_curve(lines).training
    assert (first, tokens, math.isnan(diverged)) == (3.0, 300, True)


def test_steps_that_find_the_loss_scale_are_no_fault() -> None:
    assert training_curve([step(1, 3.0, skipped_steps=4.0)]).skipped_steps == 4
    assert training_curve([step(1, 3.0, skipped_steps=4.0, loss_scale=1024.0)]).skipped_steps == 0


def test_a_trend_is_the_change_over_the_last_half() -> None:
    tokens = np.arange(1, 2001) * 50
    drawn = np.random.default_rng(0).normal(0, 0.1, len(tokens))
    losses = 4.0 - 0.2 * np.log2(tokens) + drawn
    found = trend(list(zip(tokens.tolist(), losses.tolist(), strict=True)))
    assert found is not None
    assert found[0] == pytest.approx(-0.2, abs=3 * found[1])
    assert found[1] == pytest.approx(0.1 / math.sqrt(1000) / np.log2(np.linspace(1, 2, 1000)).std(), rel=0.1)
    early = [(tokens, 99.0 if tokens < 50_000 else loss) for tokens, loss in zip(tokens.tolist(), losses, strict=True)]
    assert trend(early) == found
    assert trend([(100 + n, 2.0) for n in range(7)]) is None
    assert trend([(100 + n, math.nan) for n in range(20)]) is None
    assert trend([]) is None


def test_the_trend_of_validations_is_that_of_the_last_doubling() -> None:
    points = [(100, 2.9), (450, 2.6), (1000, 2.5)]
    assert trend_of_validations(points) == (pytest.approx(-0.1 / math.log2(1000 / 450)), 0.0)
    assert trend_of_validations([(250, 2.6), (1000, 2.5)]) == (pytest.approx(-0.05), 0.0)
    assert trend_of_validations([(100, 2.6), (1000, 2.5)]) is None
    assert trend_of_validations([(900, 2.6), (1000, 2.5)]) is None
    assert trend_of_validations([(500, math.nan), (1000, 2.5)]) is None
    assert trend_of_validations([]) is None
