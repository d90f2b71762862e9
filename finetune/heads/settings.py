"""What a recipe says about the heads.

In: values of a recipe. Out: a frozen dataclass whose values are checked. Kept: nothing. Torch is not imported.
"""

from dataclasses import dataclass
from typing import ClassVar, Literal

from zymogen.settings.section import IDENTITY, Section, setting

PoolingRequest = Literal["auto", "mean", "attention", "begin"]


@dataclass(frozen=True, kw_only=True, slots=True)
class HeadSettings(Section):
    """Heads of all tasks: how a sequence becomes one vector, and what maps a vector to numbers."""

    section: ClassVar = "heads"
    form: Literal["mlp", "transformers"] = setting(
        IDENTITY,
        "'mlp': LayerNorm and two maps; 'transformers': as in EsmForSequenceClassification, EsmForTokenClassification",
        "mlp",
    )
    pooling: PoolingRequest = setting(
        IDENTITY,
        "a sequence's vector: mean of its residues, mean weighted by learned attention, or its begin token's; 'auto' "
        "is 'mean', or 'begin' in the transformers form",
        "auto",
    )
    hidden: int | None = setting(
        IDENTITY,
        "width between the two maps of a head; without one, the encoder's",
        None,
        "channels",
        only=("form", ("mlp",)),
        at_least=1,
    )

    def __post_init__(self) -> None:
        """Refuse settings that contradict the form, and write out the pooling that 'auto' stands for."""
        Section.__post_init__(self)
        if self.form == "transformers" and self.pooling not in ("auto", "begin"):
            raise ValueError(
                f"heads.pooling is {self.pooling!r} and heads.form is 'transformers', whose sequence head reads the "
                "begin token; set heads.pooling to 'begin', or heads.form to 'mlp'"
            )
        if self.pooling == "auto":
            object.__setattr__(self, "pooling", "begin" if self.form == "transformers" else "mean")
