"""Contacts of a model as they were measured: precisions at long range, beside random weights of its shape and chance.

In: numbers. Out: `ContactScores` (`zymogen.settings.json_file`), which `pretrain.contacts` writes, and a card and a
report read. Kept: nothing; torch is not imported.
"""

from dataclasses import dataclass

from pretrain.evaluation.scores import Number

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
