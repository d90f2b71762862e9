"""Settings of masking."""

from dataclasses import dataclass
from typing import Any, ClassVar

from zymogen.settings.extension import FORM, require_name
from zymogen.settings.options import require_options
from zymogen.settings.section import IDENTITY, Section, setting

MASKS = ("bert",)
"""Mask policies of ours (`masking`)."""


@dataclass(frozen=True, kw_only=True, slots=True)
class MaskSettings(Section):
    """Corruption of the input for masked language modelling (Devlin et al. 2019, arXiv:1810.04805).

    A class of the user's (`masking.MaskPolicy`) reads `options`, and may read the probabilities.
    """

    section: ClassVar = "data.mask"
    name: str = setting(
        IDENTITY,
        f"mask policy: 'bert' selects each residue independently; or {FORM} for a class of your own",
        "bert",
        extends="class",
    )
    options: dict[str, Any] = setting(IDENTITY, "settings of a class of your own", {})
    select_prob: float = setting(
        IDENTITY, "share of residues selected as targets", 0.15, "probability", above=0, at_most=1
    )
    mask_prob: float = setting(IDENTITY, "share of targets shown as <mask>", 0.8, "probability", at_least=0, at_most=1)
    random_prob: float = setting(
        IDENTITY, "share of targets shown as a random residue", 0.1, "probability", at_least=0, at_most=1
    )

    def __post_init__(self) -> None:
        Section.__post_init__(self)
        require_name("data.mask.name", self.name, MASKS)
        require_options("data.mask", self.name, self.options)
        if self.mask_prob + self.random_prob > 1.0 + 1e-12:
            raise ValueError(
                f"data.mask.mask_prob {self.mask_prob} + data.mask.random_prob {self.random_prob} exceed 1: "
                "what is left of 1 is the share of targets shown as they are"
            )
