"""The course of a run, as metrics.jsonl has it: its validations, and what went wrong.

In: lines of metrics.jsonl. Out: `TrainingCurve`. Kept: nothing.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from zymogen.trainer.run.reader import number

Point = tuple[int, float]
"""(tokens seen, loss in nats); the loss is NaN or infinite where it was."""


@dataclass(frozen=True, slots=True)
class TrainingCurve:
    """What a run wrote down on its way."""

    validations: tuple[Point, ...] = ()
    """Validation loss with every target masked."""
    diverged: bool = False
    """Whether the last logged loss, or that of the last validation, is no finite number."""
    steps: int = 0
    """Number of the last step that was written down."""
    skipped_steps: int = 0
    """Steps without a finite gradient; 0 in fp16, whose loss scale is found by such steps."""


def training_curve(lines: Sequence[Mapping[str, Any]]) -> TrainingCurve:
    """Return the course that lines of metrics.jsonl describe, without those of lost steps (`RunReader.lines`)."""
    # A step without a target has no loss.
    logged = [line for line in lines if "loss" in line and line.get("targets", 1)]
    scores = ((line["tokens"], line["validation"].get("mask_all", {})) for line in lines if "validation" in line)
    nats = [(tokens, number(of.get("perplexity"))) for tokens, of in scores]
    validations = tuple((tokens, math.log(each) if each > 0 else math.nan) for tokens, each in nats)
    last = [*(number(line["loss"]) for line in logged[-1:]), *(loss for _, loss in validations[-1:])]
    in_fp16 = any("loss_scale" in line for line in logged)
    return TrainingCurve(
        validations=validations,
        diverged=not all(map(math.isfinite, last)),
        steps=max((line["step"] for line in lines), default=0),
        skipped_steps=0 if in_fp16 or not logged else int(logged[-1].get("skipped_steps") or 0),
    )


def change(points: Sequence[Point]) -> float | None:
    """Return the change of the loss, in nats for twice the tokens, up to the last validation.

    It is compared with the one nearest to half of its tokens. All validations score the same targets, so that the
    difference of two is not noise.

    Returns:
        None if no other one lies between a fifth and four fifths of the last one's tokens, or a loss is not finite.
    """
    tokens, loss = points[-1] if points else (0, 0.0)
    earlier = [point for point in points if 0.2 * tokens <= point[0] <= 0.8 * tokens]
    if not earlier:
        return None
    at, before = min(earlier, key=lambda point: abs(math.log2(tokens / point[0]) - 1))
    found = (loss - before) / math.log2(tokens / at)
    return found if math.isfinite(found) else None
