"""The course of a run: its losses against tokens, as metrics.jsonl has them.

In: lines of metrics.jsonl. Out: `TrainingCurve`, and the `LossTrend` of a loss. Kept: nothing.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from zymogen.trainer.run.reader import number

_CORRUPTION = "mask_all"
"""The corruption by which a model is judged."""
Point = tuple[int, float]
"""(tokens seen, loss in nats); the loss is NaN or infinite where it was."""


@dataclass(frozen=True, slots=True)
class TrainingCurve:
    """What a run wrote down on its way."""

    training: tuple[Point, ...] = ()
    """Mean loss of each logged step over its targets; a step without a target has no loss and no point here."""
    validations: tuple[Point, ...] = ()
    """Validation loss with every target masked."""
    steps: int = 0
    """Number of the last step that was written down."""
    skipped_steps: int = 0
    """Steps without a finite gradient; 0 in fp16, whose loss scale is found by such steps."""


LossTrend = tuple[float, float]
"""The change of a loss over the last half of the training, in nats, below 0 where it falls; and its standard error."""


def training_curve(lines: Sequence[Mapping[str, Any]]) -> TrainingCurve:
    """The course that lines of metrics.jsonl describe, without those of lost steps (`RunReader.lines`)."""
    logged = [line for line in lines if "loss" in line]
    validated = (line for line in lines if "validation" in line)
    scored = ((line["tokens"], number(line["validation"].get(_CORRUPTION, {}).get("perplexity"))) for line in validated)
    in_fp16 = any("loss_scale" in line for line in logged)
    return TrainingCurve(
        training=tuple((line["tokens"], number(line["loss"])) for line in logged if line.get("targets", 1)),
        validations=tuple(
            (tokens, math.log(perplexity) if perplexity > 0 else math.nan) for tokens, perplexity in scored
        ),
        steps=max((line["step"] for line in lines), default=0),
        skipped_steps=0 if in_fp16 or not logged else int(logged[-1].get("skipped_steps") or 0),
    )


def trend(points: Sequence[Point]) -> LossTrend | None:
    """The trend of the noisy losses of steps: a straight line against the logarithm of the tokens, by least squares.

    Returns:
        None with fewer than eight finite losses in the last half of the training.
    """
    last = points[-1][0] if points else 0
    half = np.array([point for point in points if 2 * point[0] >= last and math.isfinite(point[1])])
    if len(half) < 8 or half[0, 0] == half[-1, 0]:
        return None
    (slope, _), covariance = np.polyfit(np.log2(half[:, 0] / half[0, 0]), half[:, 1], 1, cov=True)
    return float(slope), float(np.sqrt(covariance[0, 0]))


def trend_of_validations(points: Sequence[Point]) -> LossTrend | None:
    """The trend between the last validation and the one nearest to half of its tokens.

    All validations score the same targets, so that the difference of two is not noise.

    Returns:
        None if no other one lies between a fifth and four fifths of the last one's tokens, or a loss is not finite.
    """
    if not points:
        return None
    tokens, loss = points[-1]
    earlier = [point for point in points if 0.2 * tokens <= point[0] <= 0.8 * tokens]
    if not earlier:
        return None
    at, before = min(earlier, key=lambda point: abs(math.log2(tokens / point[0]) - 1))
    change = (loss - before) / math.log2(tokens / at)
    return (change, 0.0) if math.isfinite(change) else None
