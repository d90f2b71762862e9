"""The picture beside the card of a fine-tuned model: the score of each task with its interval and the best baseline.

In: what the end of a run found. Out: the content of SVG files by name, and the lines of the card that show them. Kept:
nothing; the room that draws is `pretrain.report`.
"""

import hashlib
import math
from collections.abc import Iterator, Mapping
from typing import Any

from data.safe_text import redacted, tell
from finetune.metrics.scores import TITLES
from pretrain.card.measured import pictured
from pretrain.report.intervals import Intervals, Measured
from pretrain.report.pictures import Picture, drawing_file

PICTURES = "pictures"
"""In the evaluation of a bundle: file -> SHA-256 of each picture that was drawn of it."""


def best_baseline(evaluation: Mapping[str, Any], of: Mapping[str, Any]) -> tuple[str, float] | None:
    """Name and value of the best baseline on the task of one of the model's scores; None without any."""
    found = baselines(evaluation, of)
    return max(found.items(), key=lambda each: each[1]) if found else None


def baselines(evaluation: Mapping[str, Any], of: Mapping[str, Any]) -> dict[str, float]:
    """The value of each baseline on the task of one of the model's scores."""
    return {
        str(baseline["name"]): float(score["value"])
        for baseline in evaluation.get("baselines") or []
        for score in baseline["scores"]
        if (score["objective"], score["task"]) == (of["objective"], of["task"]) and score["value"] is not None
    }


def drawings(evaluation: Mapping[str, Any]) -> list[Intervals]:
    """What can be drawn of an evaluation: nothing where no task has a score."""
    rows = []
    for of in evaluation.get("model") or []:
        if of.get("value") is not None:
            low, high = (math.nan if of.get(end) is None else float(of[end]) for end in ("low", "high"))
            best = best_baseline(evaluation, of)
            label = f"{of['task']}, {TITLES.get(of['metric'], of['metric'])}"
            rows.append(Measured(label, float(of["value"]), low, high, best[1] if best else math.nan))
    if not rows:
        return []
    return [
        Intervals(
            name="scores",
            title="Scores of the tested proteins",
            rows=tuple(rows),
            x_title="upright: the best baseline",
            value="{:.3f}".format,
            note="In brackets 95 % intervals by bootstrap.",
        )
    ]


def drawn(evaluation: Mapping[str, Any]) -> dict[str, str]:
    """The pictures of an evaluation by name; what cannot be drawn, as without matplotlib, costs a line alone."""
    try:
        return {f"{each.name}.svg": redacted(drawing_file(each)) for each in drawings(evaluation)}
    except Exception as error:
        tell(f"the card's pictures were not drawn: {type(error).__name__}: {error}")
        return {}


def listing(evaluation: Mapping[str, Any], pictures: Mapping[str, str]) -> dict[str, Any]:
    """The evaluation with the hashes of these pictures, and of no others."""
    hashes = {name: hashlib.sha256(content.encode()).hexdigest() for name, content in pictures.items()}
    found = {name: value for name, value in evaluation.items() if name != PICTURES}
    return {**found, PICTURES: hashes} if hashes else found


def shown(evaluation: Mapping[str, Any]) -> Iterator[str]:
    """The lines of a card that show the pictures which the evaluation lists."""
    for each in drawings(evaluation):
        if (name := f"{each.name}.svg") in (evaluation.get(PICTURES) or {}):
            yield from pictured({name: Picture.of(each)}, name)
