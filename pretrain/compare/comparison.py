"""The result of comparing two models on the same residues.

In: what each loses on each protein. Out: `Comparison`: the difference of the mean losses with its interval. Kept:
nothing.

The interval is that of the *difference*: in each resample both models are scored on the same drawn groups, so what
makes a protein hard for both cancels, and one model's own interval says nothing about it.
"""

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

from pretrain.evaluation.corruptions import TITLES
from pretrain.evaluation.evaluate import intervals
from pretrain.evaluation.finished import Sums
from pretrain.evaluation.scores import shown

FORMAT = "zymogen.comparison/1"
_JUDGED_BY = "mask_all"
"""The corruption under which nothing can be copied."""


class Judgement(StrEnum):
    """What is known of the second model beside the first."""

    BETTER = "better"
    UNDECIDED = "undecided"
    WORSE = "worse"


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """The second model beside the first, under one corruption."""

    corruption: str
    perplexities: tuple[float, float]
    """Perplexities of the first and of the second model."""
    gain: float
    """Nats by which the second model's mean loss is below the first's; 0 for a model beside itself."""
    low: float
    """Lower end of the gain's bootstrap 95 % interval; NaN where there is one group."""
    high: float
    sequences: int
    groups: int
    targets: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Two models on one frozen set."""

    models: tuple[str, str]
    """Where their weights were found."""
    data: tuple[str, ...]
    """What they were scored on, as the user named it."""
    set: str
    """Hash of the frozen set (`pretrain.evaluation.frozen`)."""
    drawn: str
    """What the bootstrap draws, in words."""
    differences: tuple[Difference, ...]

    @property
    def judged(self) -> Difference:
        """The difference that decides."""
        return next(each for each in self.differences if each.corruption == _JUDGED_BY)

    @property
    def judgement(self) -> Judgement:
        """Whether the second model is better or worse beyond the interval."""
        if self.judged.high < 0:
            return Judgement.WORSE
        return Judgement.BETTER if self.judged.low > 0 else Judgement.UNDECIDED  # NaN is neither

    def line(self) -> str:
        """The judgement as a sentence."""
        first, second = self.models
        of = self.judged
        ends = f"({_signed(of.low)} to {_signed(of.high)}, paired bootstrap 95 %)"
        if math.isnan(of.low):
            ends = "(all proteins are of one group, so there is no interval)"
        if self.judgement is Judgement.UNDECIDED:
            return f"{second} cannot be told from {first}: its gain is {_signed(of.gain)} nats a residue {ends}"
        return f"{second} is {self.judgement} than {first}: its gain is {_signed(of.gain)} nats a residue {ends}"

    def lines(self) -> list[str]:
        """The table, and the judgement."""
        of = self.judged
        said = [
            f"A: {self.models[0]}",
            f"B: {self.models[1]}",
            f"on {of.sequences:,} proteins of {', '.join(self.data)}: frozen set {self.set}, drawn by {self.drawn}",
            "",
            f"    {'corruption':<12}{'A':>12}{'B':>12}    gain of B, nats a residue (95 % interval)",
        ]
        for each in self.differences:
            a, b = map(shown, each.perplexities)
            ends = "unknown" if math.isnan(each.low) else f"{_signed(each.low)} to {_signed(each.high)}"
            said.append(f"    {TITLES[each.corruption]:<12}{a:>12}{b:>12}    {_signed(each.gain)} ({ends})")
        return [*said, "", self.line()]

    def as_json(self) -> str:
        """Everything, for a file; None for what is not finite."""
        content = asdict(self) | {"format": FORMAT, "judgement": self.judgement}
        for each in content["differences"]:
            for name in ("low", "high"):
                each[name] = each[name] if math.isfinite(each[name]) else None
        return json.dumps(content, indent=1, allow_nan=False) + "\n"


def differences(
    first: Mapping[str, Sums], second: Mapping[str, Sums], groups: Mapping[int, int]
) -> tuple[Difference, ...]:
    """The differences of two models that were scored on one set.

    Args:
        first: corruption -> what the first model loses on each protein.
        second: the same of the second one.
        groups: number of a protein -> a number that proteins drawn together share.
    """
    found = []
    for name, of_first in first.items():
        of_second = second[name]
        assert np.array_equal(of_first.samples, of_second.samples), "both models are scored on one set"
        losses = np.array([[b[1], a[1], a[3]] for a, b in zip(of_first.rows, of_second.rows, strict=True)])
        _, drawn = np.unique([groups[sample] for sample in of_first.samples.tolist()], return_inverse=True)
        _, _, low, high = intervals(losses, drawn)
        found.append(_difference(name, losses, drawn, low, high))
    return tuple(found)


def _difference(
    corruption: str, losses: NDArray[np.float64], drawn: NDArray[np.int64], low: float, high: float
) -> Difference:
    of_second, of_first, targets = losses.sum(0).tolist()
    with np.errstate(over="ignore"):
        perplexities = float(np.exp(of_first / targets)), float(np.exp(of_second / targets))
    return Difference(
        corruption=corruption,
        perplexities=perplexities,
        gain=(of_first - of_second) / targets,
        low=low,
        high=high,
        sequences=len(losses),
        groups=int(drawn.max()) + 1,
        targets=int(targets),
    )


def _signed(nats: float) -> str:
    return "0" if nats == 0 else f"{nats:+.4f}"
