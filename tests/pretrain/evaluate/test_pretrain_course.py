"""The course of a run: what metrics.jsonl says of its losses, through stops, lost steps and numbers that are none."""

import math
from typing import Any

import pytest

from pretrain.evaluate.training_curve import TrainingCurve, change, training_curve


def step(number: int, loss: float | None, attempt: int = 1, **more: Any) -> dict[str, Any]:
    return {"step": number, "tokens": 100 * number, "attempt": attempt, "loss": loss, "skipped_steps": 0.0, **more}


def validated(number: int, hidden: float | None, copied: float, attempt: int = 1) -> dict[str, Any]:
    scores = {"mask_all": {"perplexity": hidden}, "80_10_10": {"perplexity": copied}}
    return {"step": number, "tokens": 100 * number, "attempt": attempt, "validation": scores}


def test_what_the_lines_describe() -> None:
    lines = [step(1, 3.0), step(2, None), validated(2, 18.0, 9.0), {"step": 2, "tokens": 200, "attempt": 1, "x": 1}]
    found = training_curve([*lines, step(3, 2.5, skipped_steps=2.0)])
    assert found == TrainingCurve(((200, math.log(18.0)),), diverged=False, steps=3, skipped_steps=2)
    assert training_curve(lines).diverged  # null stands for NaN
    assert training_curve([step(1, 3.0), validated(1, None, 2.0)]).diverged
    assert training_curve([]) == training_curve([{"step": 0, "tokens": 0, "attempt": 1}])
    assert training_curve([step(1, 3.0, skipped_steps=4.0)]).skipped_steps == 4
    assert training_curve([step(1, 3.0, skipped_steps=4.0, loss_scale=1024.0)]).skipped_steps == 0  # it finds the scale


def test_a_step_without_targets_has_no_loss_and_one_that_diverged_has() -> None:
    lines = [step(1, 3.0, targets=9.0), step(2, None, targets=0.0)]
    assert not training_curve(lines).diverged
    assert training_curve([*lines, step(3, None, targets=9.0)]).diverged


def test_the_change_of_validations_is_that_of_the_last_doubling() -> None:
    assert change([(100, 2.9), (450, 2.6), (1000, 2.5)]) == pytest.approx(-0.1 / math.log2(1000 / 450))
    assert change([(250, 2.6), (1000, 2.5)]) == pytest.approx(-0.05)
    for points in ([(100, 2.6), (1000, 2.5)], [(900, 2.6), (1000, 2.5)], [(500, math.nan), (1000, 2.5)], []):
        assert change(points) is None
