"""Figures of an evaluation: a row for each corruption and each bucket of proteins, and the file that holds them.

In: numbers. Out: `Figures`, their table and their JSON. Kept: nothing; torch is not imported, so that a card or a
report reads a file without it.
"""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from types import NoneType
from typing import Any, Self

from pretrain.evaluation.corruptions import TITLES
from pretrain.evaluation.scores import shown

FORMAT = "zymogen.evaluation/1"
ALL, LENGTH, IDENTITY = "all", "length", "identity"
"""What the proteins of a row have in common: nothing, their length, or how similar the nearest training protein is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """How well a model predicts the hidden residues of some proteins under one corruption."""

    set: str
    """Hash of the whole frozen set (`pretrain.evaluation.frozen`)."""
    corruption: str
    by: str
    """`ALL`, `LENGTH` or `IDENTITY`."""
    bucket: str
    """Which proteins, in words."""
    sequences: int
    groups: int
    """Groups of these proteins that the bootstrap draws."""
    targets: int
    nats: float
    """Loss summed over the targets; those of the buckets add up to that of all."""
    perplexity: float
    low: float
    """Lower end of the perplexity's bootstrap 95 % interval; NaN where there is one group."""
    high: float
    unigram: float
    """Perplexity of residue frequencies on the same targets."""
    gain: float
    """Nats by which the mean loss is below that of residue frequencies."""
    gain_low: float
    gain_high: float

    def as_dict(self) -> dict[str, Any]:
        """The fields by name; None for what is not finite."""
        return {name: _finite(value) for name, value in asdict(self).items()}

    @classmethod
    def read(cls, row: Mapping[str, Any]) -> Self:
        """The figure that `as_dict` gave.

        Raises:
            ValueError: a value is of another type than its field.
        """
        given: dict[str, Any] = {field.name: row[field.name] for field in fields(cls)}
        for field in fields(cls):
            is_text = field.type in (str, "str")
            if not isinstance(given[field.name], str if is_text else (int, float, NoneType)):
                raise ValueError(f"{field.name} is {given[field.name]!r}")
        given |= {name: math.nan for name, value in given.items() if value is None}
        return cls(**given)


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """Everything that an evaluation found."""

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

    def as_json(self) -> str:
        """The content of the file."""
        content = {field.name: getattr(self, field.name) for field in fields(self)}
        content["rows"] = [row.as_dict() for row in self.rows]
        return json.dumps({"format": FORMAT, **content}, indent=1, allow_nan=False) + "\n"

    @classmethod
    def read(cls, path: Path) -> Self:
        """The figures in a file.

        Raises:
            ValueError: the file cannot be read, or is none of this command's.
        """
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
            if content["format"] != FORMAT:
                raise ValueError(f"its format is {content['format']!r}, this version reads {FORMAT!r}")
            lists = {name: tuple(content[name]) for name in ("data", "not_measured")}
            training = content["training"] if content["training"] is None else tuple(content["training"])
            rows = tuple(Figure.read(row) for row in content["rows"])
            plain = {field.name: content[field.name] for field in fields(cls)}
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise ValueError(f"{path} is no file of python -m pretrain.evaluate: {error}; write it again") from None
        return cls(**{**plain, **lists, "training": training, "rows": rows})

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
            ends = "unknown" if math.isnan(row.low) else f"{shown(row.low)} to {shown(row.high)}"
            said.append(
                f"    {TITLES[row.corruption]:<10}  {row.bucket:<21}  {row.sequences:>9,}  "
                f"{shown(row.perplexity):>10}  {ends:<17} {shown(row.unigram)}"
            )
        return [*said, *self.not_measured]


def buckets(edges: Sequence[float], words: Sequence[str], values: Sequence[float]) -> list[str]:
    """The bucket of each value: `words` has one more entry than `edges`, whose numbers rise and open a bucket each."""
    assert len(words) == len(edges) + 1
    return [words[sum(edge <= value for edge in edges)] for value in values]


def _finite(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value
