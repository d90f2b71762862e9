"""What an evaluation measured: a row for each corruption and each bucket of proteins, contacts, and the file of them.

In: numbers. Out: `EvaluationResult` and `ContactScores`, their tables, and a record of JSON. Kept: nothing; torch is
not imported, so that a card or a report reads a file without it.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from pretrain.evaluate.scores import TITLES, CorruptionScores, Number, format_interval
from zymogen.console.format import format_number
from zymogen.console.progress import in_columns

CONTROL = "random weights"
CHANCE = "chance"
Pairs = tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class ConfidenceInterval:
    """A mean over chains, with its bootstrap 95 % interval."""

    mean: Number
    low: Number
    """NaN, as is `high`, where all chains are relatives, which does not show how much others differ."""
    high: Number


@dataclass(frozen=True, slots=True)
class ContactPairs:
    """The contacts of a chain at a separation of 6 and more; residues from 0, the first of a pair before the second."""

    name: str
    residues: int
    touching: Pairs
    """Pairs that touch."""
    predicted: Pairs
    """The most probable pairs, as many as there are residues whose places are known, by falling probability."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ContactScores:
    """Precisions of the chains that were scored."""

    format: str = "zymogen.contacts/2"
    model: str
    """The model's name."""
    weights: str = ""
    """Hash of all weights."""
    fitted_on: tuple[str, ...]
    """Names of the chains on whose attention maps the regression was fitted."""
    left_out_relatives: int
    """Chains that are relatives of those."""
    undefined: int
    """Chains without a contact at long range, which have no precision."""
    searched_by: str
    """The program that found relatives."""
    chains: tuple[str, ...]
    """Names of the chains that were scored."""
    clusters: tuple[int, ...]
    """(chains,) a number that relatives share."""
    values: dict[str, dict[str, list[float]]]
    """Model or control -> name of a precision -> (chains,) values; chance has one that is called so."""
    means: dict[str, dict[str, ConfidenceInterval]]
    """The same, over all chains."""
    weight: tuple[float, ...]
    """Factor of each attention map in the regression."""
    bias: float
    map: ContactPairs
    """Contacts and predictions of the chain whose P@L is in the middle of all."""

    def __post_init__(self) -> None:
        if missing := {self.model, CONTROL, CHANCE} - self.means.keys():
            raise ValueError(f"there are no means of {', '.join(sorted(missing))}")
        if CHANCE not in self.means[CHANCE] or self.means[self.model].keys() - self.means[CONTROL].keys():
            raise ValueError("the control and chance do not have all precisions of the model")
        if self.map.residues < 1:
            raise ValueError("the map is of no residue")

    @property
    def is_constant(self) -> bool:
        """Whether every weight of the regression is 0, so that all pairs have one probability."""
        return not any(self.weight)


ALL, LENGTH, IDENTITY = "all", "length", "identity"
"""What the proteins of a row have in common: nothing, their length, or how similar the nearest training protein is."""

HEAD = ("corruption", "proteins", "number", "perplexity", "95 % interval", "residue frequencies")


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationRow(CorruptionScores):
    """How well a model predicts the hidden residues of some proteins under one corruption."""

    set: str
    """Hash of the whole frozen set (`pretrain.evaluate.frozen_set`)."""
    corruption: str
    by: str
    """`ALL`, `LENGTH` or `IDENTITY`."""
    bucket: str
    """Which proteins, in words."""
    groups: int
    """Groups of these proteins that the bootstrap draws."""
    nats: float
    """Loss summed over the targets; those of the buckets add up to that of all."""

    @property
    def cells(self) -> tuple[str, ...]:
        """The row of a table under `HEAD`."""
        model, unigram = (
            format_number(each if math.isfinite(each) else None) for each in (self.perplexity, self.unigram)
        )
        ends = format_interval(self.low, self.high)
        return TITLES.get(self.corruption, self.corruption), self.bucket, f"{self.sequences:,}", model, ends, unigram


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationResult:
    """Everything that an evaluation found (`zymogen.settings.json_file`)."""

    format: str = "zymogen.evaluation/2"
    model: str
    """The model's name."""
    origin: str
    """Where its weights were found."""
    weights: str
    """Hash of all weights."""
    data: tuple[str, ...]
    """What was scored, as the user named it."""
    held_out: str | None
    """A `scores.HeldOutUnit` where the scored proteins are those of a run; None for proteins of other files."""
    set: str
    sequences: int
    residues: int
    """Residues of the crops."""
    crop_tokens: int
    groups: str
    """What the bootstrap draws, in words."""
    unigram_of: str
    """Which proteins the residue frequencies are those of."""
    training: tuple[str, ...] | None
    """What identity was measured against, as the user named it."""
    searched_by: str | None
    """The program that found relatives, with its options."""
    not_measured: tuple[str, ...]
    """Sentences about what was asked for or usual, and could not be measured."""
    rows: tuple[EvaluationRow, ...]

    def lines(self) -> list[str]:
        """The table, and what it is of."""
        said = [
            f"{self.origin}: {self.sequences:,} proteins, {self.residues:,} residues of {', '.join(self.data)}",
            f"frozen set {self.set}; intervals draw {self.groups}; frequencies are those of {self.unigram_of}",
        ]
        if self.training and self.searched_by:
            said.append(f"identity is that to the nearest of {', '.join(self.training)} ({self.searched_by})")
        return [
            *said,
            "",
            *(f"    {line}" for line in in_columns([HEAD, *(row.cells for row in self.rows)])),
            *self.not_measured,
        ]


def buckets(edges: Sequence[float], words: Sequence[str], values: Sequence[float]) -> list[str]:
    """The bucket of each value: `words` has one more entry than `edges`, whose numbers rise and open a bucket each."""
    assert len(words) == len(edges) + 1
    return [words[sum(edge <= value for edge in edges)] for value in values]
