"""The results of a validation of masked language modelling, as the loop, the closing words and the report read them.

In: a `CorruptionScores` for each corruption. Out: numbers, a line, the number that ranks checkpoints. Kept: nothing;
torch is not imported.

Both corruptions select the same targets. *Mask-all* hides every target; *80/10/10* is the corruption of training. The
second looks better than it is: one target in ten shows its true residue, which a model can copy. Judge by mask-all.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from enum import StrEnum
from typing import Annotated, Any, Self

from pydantic import BeforeValidator

from data.batches.settings import MaskSettings
from zymogen.console.format import format_number

_SELECT_PROB = 0.15
CORRUPTIONS = {
    "mask_all": MaskSettings(select_prob=_SELECT_PROB, mask_prob=1.0, random_prob=0.0),
    "80_10_10": MaskSettings(select_prob=_SELECT_PROB, mask_prob=0.8, random_prob=0.1),
}
TITLES = {"mask_all": "mask-all", "80_10_10": "80/10/10"}


class HeldOutUnit(StrEnum):
    """What was held out together, so that it can be scored: `corpus.held_out` of run.json."""

    CLUSTERS = "clusters"
    SEQUENCES = "equal sequences"
    NOTHING = "nothing"
    """The scored proteins are training proteins."""

    @classmethod
    def of(cls, corpus: Mapping[str, Any]) -> Self | None:
        """That of a run, by what its run.json says of the corpus; None where that does not say it."""
        value = corpus.get("held_out")
        return cls(value) if value in tuple(cls) else None

    def heading(self, sequences: int, corpus: Mapping[str, Any]) -> str:
        """The heading of a table of perplexities on so many proteins, of those that run.json counts of the corpus."""
        held = corpus.get("training_records" if self is HeldOutUnit.NOTHING else "validation_records")
        number = f"{sequences:,}" if held in (None, sequences) else f"{sequences:,} of {held:,}"
        proteins = "protein" if number == "1" else "proteins"
        if self is HeldOutUnit.NOTHING:
            return f"Perplexity on {number} training {proteins}, because none is held out"
        if self is HeldOutUnit.CLUSTERS:
            return f"Validation perplexity on {number} {proteins} of held-out clusters"
        return f"Validation perplexity on {number} held-out {proteins}"


def kind_of(held_out: str | None) -> str:
    """What scored proteins are called; None where nothing says what they are."""
    if held_out is None:
        return "protein"
    return "training protein" if held_out == HeldOutUnit.NOTHING else "held-out protein"


def format_interval(low: float | None, high: float | None, value: Callable[[float], str] = format_number) -> str:
    """The ends of an interval for readers; "unknown" where there is one group, and so no interval."""
    return "unknown" if low is None or high is None or math.isnan(low) else f"{value(low)} to {value(high)}"


def _number(value: Any) -> Any:
    return math.nan if value is None else value


Number = Annotated[float, BeforeValidator(_number)]
"""A number that is null in a file where it is not finite."""


@dataclass(frozen=True, slots=True)
class CorruptionScores:
    """Scores under one corruption; every perplexity is exp of the mean loss over targets, in nats."""

    perplexity: Number
    low: Number
    """Lower end of the bootstrap 95 % interval of the perplexity, over clusters; NaN where there is but one."""
    high: Number
    """Upper end of that interval."""
    unigram: Number
    """Perplexity of residue frequencies of the training side, on the same targets."""
    gain: Number
    """Nats by which the model's mean loss is below the unigram's."""
    gain_low: Number
    """Lower end of the gain's bootstrap 95 % interval: if it is above 0, the model beats the baseline beyond chance."""
    gain_high: Number
    """Upper end of that interval: if it is below 0, the model is worse than the baseline beyond chance."""
    floor: float | None
    """Perplexity of the best possible predictor; known for the embedded corpus alone."""
    sequences: int
    targets: int

    def numbers(self) -> dict[str, float]:
        """The fields by name, as floats, without an unknown floor."""
        pairs = ((each.name, getattr(self, each.name)) for each in fields(self))
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

    evaluations: dict[str, CorruptionScores]
    """By the names of `CORRUPTIONS`."""
    held_out: HeldOutUnit
    """What the scored proteins are."""

    def numbers(self) -> dict[str, dict[str, float]]:
        """All scores, by corruption and name."""
        return {name: evaluation.numbers() for name, evaluation in self.evaluations.items()}

    def line(self) -> str:
        """One line with each perplexity and the unigram's."""
        of = self.evaluations.items()
        each = (f"{TITLES[name]} {format_number(s.perplexity)} (unigram {format_number(s.unigram)})" for name, s in of)
        trained = self.held_out is HeldOutUnit.NOTHING
        return f"{'perplexity on training proteins' if trained else 'validation perplexity'}: {', '.join(each)}"

    @property
    def rank_metric(self) -> float:
        """Perplexity under mask-all, where nothing can be copied."""
        return self.evaluations["mask_all"].perplexity


@dataclass(frozen=True, slots=True)
class MeanLosses:
    """The mean losses of an objective that has no perplexity."""

    terms: Mapping[str, tuple[float, float, float]]
    """By name of the loss term: mean loss, number of targets, weight."""
    baseline: Mapping[str, float]
    """The loss of a simple predictor, by name of the loss term."""

    def numbers(self) -> dict[str, dict[str, float]]:
        """All of it, by loss term and name."""
        found = {name: {"loss": loss, "targets": targets} for name, (loss, targets, _) in self.terms.items()}
        for name, loss in self.baseline.items():
            found[name]["baseline"] = loss
        return found

    def line(self) -> str:
        """One line with each mean loss and its baseline."""
        return f"validation loss: {', '.join(map(self._of, self.terms))}"

    def _of(self, name: str) -> str:
        beside = f" (baseline {format_number(self.baseline[name])})" if name in self.baseline else ""
        return f"{name} {format_number(self.terms[name][0])}{beside}"

    @property
    def rank_metric(self) -> float:
        """The loss that is minimised."""
        return sum(weight * loss for loss, _, weight in self.terms.values())


@dataclass(frozen=True, slots=True)
class Prediction:
    """A held-out protein, or a slice of one, as the model predicts it."""

    corpus: int
    """Number of its corpus in the mixture, from 0."""
    record: int
    """Number of the protein in its corpus, from 0."""
    whole: int
    """Residues of the whole protein."""
    first: int
    """Residues of the protein before the slice."""
    residues: str
    """True residues of the slice, one letter each."""
    probabilities: list[float | None]
    """The model's probability of each true residue while that is hidden; None for a letter that is no target."""
    name: str
    """First word of the protein's header."""
    by_frequencies: float
    """Mean probability of the same residues by residue frequencies of the training side; 0 where there are none."""

    def __post_init__(self) -> None:
        if len(self.residues) != len(self.probabilities):
            raise ValueError(f"{len(self.probabilities)} probabilities of {len(self.residues)} residues")


@dataclass(frozen=True, slots=True, kw_only=True)
class ProteinPredictions:
    """Content of predictions.json (`zymogen.settings.json_file`)."""

    format: str = "zymogen.predictions/2"
    proteins: tuple[Prediction, ...]
