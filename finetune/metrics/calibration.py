"""Calibration: probabilities that come true as often as they say, and intervals that hold as often as they promise.

In: predictions on the validation part with what was measured. Out: maps of predictions, half widths, coverage. Kept:
the few numbers of a map, which JSON holds.

Temperature: Guo et al. 2017, arXiv:1706.04599. Split conformal intervals: Lei et al. 2018,
doi:10.1080/01621459.2017.1307116; they promise their coverage for data like the validation part, and `coverage` says
what is left of it on a shifted one.
"""

import numpy as np
from numpy.typing import ArrayLike

from finetune.metrics.weighted import Floats

_LOGARITHM_RANGE = np.log(100.0)
_LOGARITHM_SPREAD = 1.0
"""Standard deviation of the logarithms of temperatures before any label is seen: most are from 1/3 to 3."""
_LEAST_PROB = 1e-12


def tempered(probabilities: Floats, temperature: float) -> Floats:
    """Probabilities of yes (n,) or of classes (n, C) with log-odds, or logits, divided by a number.

    Above 1 it makes a model less sure; no order changes.
    """
    if probabilities.ndim == 1:
        logits = log_odds(probabilities, _LEAST_PROB) / temperature
        return np.asarray(np.where(logits >= 0, 1, np.exp(np.minimum(logits, 0))) / (1 + np.exp(-np.abs(logits))))
    logits = np.log(np.clip(probabilities, _LEAST_PROB, 1)) / temperature
    exponentials = np.exp(logits - logits.max(1, keepdims=True))
    return np.asarray(exponentials / exponentials.sum(1, keepdims=True))


def fit_temperature(truth: ArrayLike, probabilities: Floats) -> float:
    """The temperature, in 0.01..100, that is most likely, if its logarithm is of a normal distribution around 0.

    Without that, twenty labels that happen to be all right would make every probability 0 or 1. It counts little from
    fifty labels on.

    Args:
        truth: (n,) 0 or 1, or indices of classes.
        probabilities: (n,) of yes, or (n, C) of classes, on a part that was not trained on.

    Raises:
        ValueError: a probability is not in [0, 1].
    """
    from scipy.optimize import minimize_scalar

    labels = np.asarray(truth, np.int64)
    _require_probabilities(probabilities)

    def loss(logarithm: float) -> float:
        scaled = tempered(probabilities, float(np.exp(logarithm)))
        of_truth = (
            np.where(labels == 1, scaled, 1 - scaled) if scaled.ndim == 1 else scaled[np.arange(len(labels)), labels]
        )
        return float(-np.log(np.clip(of_truth, 1e-300, 1)).sum() + (logarithm / _LOGARITHM_SPREAD) ** 2 / 2)

    found = minimize_scalar(
        loss, bounds=(-_LOGARITHM_RANGE, _LOGARITHM_RANGE), method="bounded", options={"xatol": 1e-6}
    )
    return float(np.exp(found.x))


def fit_isotonic(truth: ArrayLike, probabilities: Floats) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """The rising piecewise linear map with the least squared error: probabilities of yes, and what each becomes.

    Raises:
        ValueError: a probability is not in [0, 1].
    """
    from sklearn.isotonic import IsotonicRegression

    labels = np.asarray(truth, np.float64)
    _require_probabilities(probabilities)
    fitted = IsotonicRegression(y_min=0.0, y_max=1.0, out_of_bounds="clip").fit(probabilities, labels)
    return tuple(fitted.X_thresholds_.tolist()), tuple(fitted.y_thresholds_.tolist())


def conformal_half_width(truth: ArrayLike, prediction: ArrayLike, coverage: float = 0.9) -> float:
    """Half width of an interval around a prediction that holds the truth with at least the probability `coverage`.

    The rank ``ceil((n + 1) coverage)`` of n absolute errors; the promise holds for finite n, for data that could have
    been exchanged with these.

    Returns:
        Infinity where n is too small for the promise: below 9 for 90 %.

    Raises:
        ValueError: a number is not finite.
    """
    errors = np.sort(np.abs(np.asarray(truth, np.float64) - np.asarray(prediction, np.float64)))
    if not np.isfinite(errors).all():
        raise ValueError("an error of the validation part is not finite; every label needs a prediction that is")
    rank = int(np.ceil((len(errors) + 1) * coverage - 1e-9))
    return float(errors[rank - 1]) if rank <= len(errors) else np.inf


def covered(truth: ArrayLike, low: ArrayLike, high: ArrayLike) -> float:
    """Share of the truth that lies in its interval, the ends included; NaN without any."""
    values = np.asarray(truth, np.float64)
    return float(((np.asarray(low) <= values) & (values <= np.asarray(high))).mean()) if len(values) else np.nan


def expected_calibration_error(true: ArrayLike, probabilities: Floats, bins: int = 15) -> float:
    """Mean distance between how sure and how often right, over bins of equal width, weighted by their rows.

    Args:
        true: (n,) whether what was given the probability is so: the label itself, or whether the called class is right.
        probabilities: (n,) in [0, 1].
        bins: how many.
    """
    place = np.minimum((probabilities * bins).astype(np.int64), bins - 1)
    gaps = np.bincount(place, np.asarray(true, np.float64) - probabilities, bins)
    return float(np.abs(gaps).sum() / len(probabilities))


def log_odds(probabilities: Floats, least: float = 1e-300) -> Floats:
    """Logarithms of p / (1 - p); a probability that is nearer than `least` to 0 or 1 counts as this near."""
    inside = np.clip(probabilities, least, 1 - max(least, 1e-16))
    return np.asarray(np.log(inside) - np.log1p(-inside))


def _require_probabilities(probabilities: Floats) -> None:
    if not ((probabilities >= 0) & (probabilities <= 1)).all():
        raise ValueError("a probability is not a number in [0, 1]; calibrate what the model predicts, not its logits")
