"""Figures of an evaluation: a row for each corruption and each bucket of proteins, and the file that holds them.

In: numbers. Out: `Figures`, their table, and a record of JSON. Kept: nothing; torch is not imported, so that a card or
a report reads a file without it.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from pretrain.evaluation.corruptions import TITLES
from pretrain.evaluation.scores import Evaluation, shown, shown_interval

ALL, LENGTH, IDENTITY = "all", "length", "identity"
"""What the proteins of a row have in common: nothing, their length, or how similar the nearest training protein is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure(Evaluation):
    """How well a model predicts the hidden residues of some proteins under one corruption."""

    set: str
    """Hash of the whole frozen set (`pretrain.evaluation.frozen`)."""
    corruption: str
    by: str
    """`ALL`, `LENGTH` or `IDENTITY`."""
    bucket: str
    """Which proteins, in words."""
    groups: int
    """Groups of these proteins that the bootstrap draws."""
    nats: float
    """Loss summed over the targets; those of the buckets add up to that of all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """Everything that an evaluation found (`data.recipe.json_file`)."""

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
    """A `scores.HeldOut` where the scored proteins are those of a run; None for proteins of other files."""
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
    rows: tuple[Figure, ...]

    def lines(self) -> list[str]:
        """The table, and what it is of."""
        said = [
            f"{self.origin}: {self.sequences:,} proteins, {self.residues:,} residues of {', '.join(self.data)}",
            f"frozen set {self.set}; intervals draw {self.groups}; frequencies are those of {self.unigram_of}",
        ]
        if self.training and self.searched_by:
            said.append(f"identity is that to the nearest of {', '.join(self.training)} ({self.searched_by})")
        head = f"    {'corruption':<10}  {'proteins':<21}  {'number':>9}  {'perplexity':>10}  {'95 % interval':<17}"
        said += ["", f"{head} unigram"]
        for row in self.rows:
            said.append(
                f"    {TITLES[row.corruption]:<10}  {row.bucket:<21}  {row.sequences:>9,}  "
                f"{shown(row.perplexity):>10}  {shown_interval(row.low, row.high):<17} {shown(row.unigram)}"
            )
        return [*said, *self.not_measured]


def buckets(edges: Sequence[float], words: Sequence[str], values: Sequence[float]) -> list[str]:
    """The bucket of each value: `words` has one more entry than `edges`, whose numbers rise and open a bucket each."""
    assert len(words) == len(edges) + 1
    return [words[sum(edge <= value for edge in edges)] for value in values]
