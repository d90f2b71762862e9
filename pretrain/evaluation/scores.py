"""The results of a validation of masked language modelling, as the loop, the closing words and the report read them.

In: an `Evaluation` for each corruption. Out: numbers, a line, the number that ranks checkpoints. Kept: nothing; torch
is not imported.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

from pretrain.evaluation.corruptions import TITLES


@dataclass(frozen=True, slots=True)
class Evaluation:
    """Scores under one corruption; every perplexity is exp of the mean loss over targets, in nats."""

    perplexity: float
    low: float
    """Lower end of the bootstrap 95 % interval of the perplexity, over clusters; NaN where there is but one."""
    high: float
    """Upper end of that interval."""
    unigram: float
    """Perplexity of residue frequencies of the training side, on the same targets."""
    gain: float
    """Nats by which the model's mean loss is below the unigram's."""
    gain_low: float
    """Lower end of the gain's bootstrap 95 % interval: if it is above 0, the model beats the baseline beyond chance."""
    gain_high: float
    """Upper end of that interval: if it is below 0, the model is worse than the baseline beyond chance."""
    floor: float | None
    """Perplexity of the best possible predictor; known for the embedded corpus alone."""
    sequences: int
    targets: int

    def numbers(self) -> dict[str, float]:
        """The fields by name, as floats, without an unknown floor."""
        pairs = ((name, getattr(self, name)) for name in self.__slots__)
        return {name: float(value) for name, value in pairs if value is not None}

    @classmethod
    def read(cls, numbers: Mapping[str, float | None]) -> Self:
        """The evaluation that `numbers` gave, from a line of metrics.jsonl: what is not finite is null there.

        Raises:
            KeyError: a field is not there, as in lines of early versions.
        """
        exact = {
            name: math.nan if (value := numbers[name]) is None else value for name in cls.__slots__ if name != "floor"
        }
        return cls(**exact, floor=numbers.get("floor"))  # type: ignore[arg-type]


@dataclass(frozen=True, slots=True)
class MaskedLanguageScores:
    """The scores under each corruption."""

    evaluations: dict[str, Evaluation]
    """By the names of `corruptions.CORRUPTIONS`."""
    by_cluster: bool
    """Whether clusters were held out whole; if not, proteins that equal none of the training proteins were."""
    holds_out: bool = True
    """Whether the scored proteins were held out; if not, they are of the training side."""

    def numbers(self) -> dict[str, dict[str, float]]:
        """All scores, by corruption and name."""
        return {name: evaluation.numbers() for name, evaluation in self.evaluations.items()}

    def line(self) -> str:
        """One line with each perplexity and the unigram's."""
        each = (f"{TITLES[name]} {s.perplexity:.2f} (unigram {s.unigram:.2f})" for name, s in self.evaluations.items())
        return f"validation perplexity: {', '.join(each)}"

    @property
    def rank_metric(self) -> float:
        """Perplexity under mask-all, where nothing can be copied."""
        return self.evaluations["mask_all"].perplexity
