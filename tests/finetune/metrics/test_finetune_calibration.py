"""Calibration: temperatures that were put in come out, intervals hold what they promise."""

import numpy as np
import pytest
from numpy.typing import NDArray

from finetune.metrics.calibration import (
    conformal_half_width,
    covered,
    expected_calibration_error,
    fit_isotonic,
    fit_temperature,
    tempered,
)

Floats = NDArray[np.float64]
RNG = np.random.Generator(np.random.Philox(8))


def sigmoid(logits: Floats) -> Floats:
    return np.asarray(1 / (1 + np.exp(-logits)))


def softmax(logits: Floats) -> Floats:
    exponentials = np.exp(logits)
    return np.asarray(exponentials / exponentials.sum(1, keepdims=True))


def test_temperature_of_yes_and_no() -> None:
    logits = RNG.normal(0, 2, 20_000)
    truth = RNG.random(20_000) < sigmoid(logits)
    sure = sigmoid(3 * logits)
    found = fit_temperature(truth, sure)
    assert found == pytest.approx(3, rel=0.05)
    assert tempered(sure, found) == pytest.approx(sigmoid(3 * logits / found), abs=1e-9)
    assert expected_calibration_error(truth, sure) > 0.1
    assert expected_calibration_error(truth, tempered(sure, found)) < 0.015


def test_temperature_of_classes() -> None:
    logits = RNG.normal(0, 2, (20_000, 4))
    truth = (RNG.random((20_000, 1)) > np.cumsum(softmax(logits), 1)).sum(1)
    found = fit_temperature(truth, softmax(0.5 * logits))
    assert found == pytest.approx(0.5, rel=0.05)
    calibrated = tempered(softmax(0.5 * logits), found)
    assert calibrated.sum(1) == pytest.approx(1)
    assert calibrated == pytest.approx(softmax(0.5 * logits / found), abs=1e-9)


def test_temperature_holds_at_the_ends() -> None:
    ends = tempered(np.array([0.0, 0.5, 1.0]), 2.0)
    assert ends == pytest.approx([1e-6, 0.5, 1 - 1e-6], rel=1e-3)
    # All right, as often as not by chance: each label makes the model a little surer.
    few, many = (fit_temperature([1, 0] * n, np.array([0.9, 0.1] * n)) for n in (1, 1000))
    assert 0.5 < few < 1
    assert many < 0.25


def test_a_temperature_of_few_labels_does_not_make_new_ones_less_likely() -> None:
    """Probabilities that were right before any calibration: twelve labels at a time, judged by 2,000 others."""
    rng = np.random.Generator(np.random.Philox(12))
    logits, others = rng.normal(0, 5, (100, 12)), rng.normal(0, 5, 2000)
    truth, of_others = rng.random(logits.shape) < sigmoid(logits), rng.random(2000) < sigmoid(others)

    def loss(probabilities: Floats) -> float:
        return float(-np.log(np.clip(np.where(of_others, probabilities, 1 - probabilities), 1e-12, 1)).mean())

    after = [
        loss(tempered(sigmoid(others), fit_temperature(t, sigmoid(z)))) for z, t in zip(logits, truth, strict=True)
    ]
    assert np.mean(after) < 1.2 * loss(sigmoid(others))  # 3 times as much with the likeliest temperature


def test_isotonic_is_that_of_pooled_neighbours() -> None:
    """The violators 1, 0 and 1, 0 are pooled to their means; between points it is linear."""
    fitted = fit_isotonic([0, 1, 0, 1, 0, 1], np.array([0.1, 0.2, 0.3, 0.4, 0.5, 0.6]))
    assert np.interp(np.array([0.0, 0.1, 0.2, 0.35, 0.5, 0.55, 0.6, 1.0]), *fitted) == pytest.approx(
        [0, 0, 0.5, 0.5, 0.5, 0.75, 1, 1]
    )


def test_what_is_no_probability_is_refused() -> None:
    for fit in (fit_temperature, fit_isotonic):
        with pytest.raises(ValueError, match="a probability is not a number in"):
            fit([1], np.array([np.nan]))


def test_half_width_is_the_rank_of_finite_samples() -> None:
    errors = np.arange(1, 20.0)  # of 19 the 18th: ceil(20 * 0.9)
    assert conformal_half_width(np.zeros(19), errors) == 18
    assert conformal_half_width(np.zeros(9), np.arange(1, 10.0)) == 9
    assert conformal_half_width(np.zeros(8), np.ones(8)) == np.inf
    assert conformal_half_width(np.zeros(8), -np.ones(8), 0.5) == 1
    with pytest.raises(ValueError, match="not finite"):
        conformal_half_width([1.0], [np.nan])


def test_intervals_hold_what_they_promise() -> None:
    """Mean coverage over 400 draws of 99 errors is 0.9 within three standard errors; the plain quantile's is lower."""
    held, plain = [], []
    for _ in range(400):
        errors = RNG.standard_t(3, 99 + 200)
        width = conformal_half_width(errors[:99], np.zeros(99))
        held.append(covered(errors[99:], np.full(200, -width), np.full(200, width)))
        plain.append((np.abs(errors[99:]) <= np.quantile(np.abs(errors[:99]), 0.88)).mean())
    error = np.std(held) / 20
    assert np.mean(held) == pytest.approx(0.9, abs=3 * error)
    assert np.mean(plain) < 0.9 - 3 * error
    assert np.isnan(covered([], [], []))


def test_expected_calibration_error_by_hand() -> None:
    """Two of the four lie in the bin of 0.9, half of them right; those in the bin of 0.2 are as sure as right."""
    probabilities = np.array([0.9, 0.9, 0.25, 0.25])
    assert expected_calibration_error([1, 0, 0, 0], probabilities, 10) == pytest.approx((2 * 0.4 + 2 * 0.25) / 4)
    assert expected_calibration_error([1], np.array([1.0])) == 0
