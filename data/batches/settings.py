"""Settings of masking."""

from dataclasses import dataclass
from typing import ClassVar

from zymogen.settings.section import IDENTITY, Section, setting


@dataclass(frozen=True, kw_only=True, slots=True)
class MaskSettings(Section):
    """Corruption of the input for masked language modelling (Devlin et al. 2019, arXiv:1810.04805)."""

    section: ClassVar = "data.mask"
    select_prob: float = setting(
        IDENTITY, "share of residues selected as targets", 0.15, "probability", above=0, at_most=1
    )
    mask_prob: float = setting(IDENTITY, "share of targets shown as <mask>", 0.8, "probability", at_least=0, at_most=1)
    random_prob: float = setting(
        IDENTITY, "share of targets shown as a random residue", 0.1, "probability", at_least=0, at_most=1
    )

    def __post_init__(self) -> None:
        Section.__post_init__(self)
        if self.mask_prob + self.random_prob > 1.0 + 1e-12:
            raise ValueError(
                f"data.mask.mask_prob {self.mask_prob} + data.mask.random_prob {self.random_prob} exceed 1: "
                "what is left of 1 is the share of targets shown as they are"
            )
