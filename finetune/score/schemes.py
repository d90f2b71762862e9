"""What a score is: the schemes by their names, and the variants that they score.

In: a target and sequences. Out: variants. Kept: nothing.

With x the target, x' the variant, M the residues in which they differ, and p what the model gives a residue:

- ``wt-marginal``: the sum over i in M of log p(x'_i | x) - log p(x_i | x). The model sees the whole wild type.
- ``masked-marginal-wt-fill``: the sum over i in M of log p(x'_i | x without i) - log p(x_i | x without i). One residue
  is masked at a time, and the others are those of the wild type. It is what ESM's and ProteinGym's programs call
  ``masked-marginals``.
- ``masked-marginal-joint``: the same with "x without M": all residues of M are masked at once. It is the formula of
  Meier et al. 2021 (https://doi.org/10.1101/2021.07.09.450648), and equal to the former for a single mutation.
- ``pseudo-likelihood``: the sum over all residues i of x' of log p(x'_i | x' without i), without the wild type's. It
  scores insertions and deletions too. Longer sequences sum more terms.
"""

from dataclasses import dataclass
from typing import Literal, get_args

Scheme = Literal["wt-marginal", "masked-marginal-wt-fill", "masked-marginal-joint", "pseudo-likelihood"]

SCHEMES: tuple[Scheme, ...] = get_args(Scheme)
MARGINALS = SCHEMES[:3]
"""Those that compare residues at one place, so that they score substitutions alone."""


@dataclass(frozen=True, slots=True)
class Variant:
    """A protein that differs from its target."""

    sequence: str
    mutated: tuple[int, ...] | None
    """Residues, from 0 and rising, that differ from the target's; None where the lengths differ."""


def variant_of(target: str, sequence: str) -> Variant:
    """The variant of `target` that has this sequence."""
    if len(sequence) != len(target):
        return Variant(sequence, None)
    pairs = enumerate(zip(target, sequence, strict=True))
    return Variant(sequence, tuple(at for at, (old, new) in pairs if old != new))


def column(model: str, scheme: Scheme) -> str:
    """Name of the column with the scores of a model under a scheme."""
    return f"{model}:{scheme}"
