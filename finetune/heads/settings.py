"""What a recipe says about the heads.

In: values of a recipe. Out: a frozen dataclass whose values are checked. Kept: nothing. Torch is not imported.
"""

from dataclasses import dataclass, replace
from typing import ClassVar, Literal, Self

from data.recipe.setting import IDENTITY, Section, setting

Form = Literal["mlp", "transformers"]
InputsRequest = Literal["auto", "whitened", "standardised", "as_they_are"]
PoolingRequest = Literal["auto", "mean", "attention", "begin"]


@dataclass(frozen=True, kw_only=True, slots=True)
class HeadSettings(Section):
    """Heads of all tasks: how a sequence becomes one vector, and what maps a vector to numbers."""

    section: ClassVar = "heads"
    form: Form = setting(
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
        IDENTITY, "width between the two maps of a head; without one, the encoder's", None, "channels", at_least=1
    )

    inputs: InputsRequest = setting(
        IDENTITY,
        "vectors that a head reads: over the training part 'whitened' or 'standardised', or 'as_they_are'; 'auto' is "
        "'whitened', or 'standardised' where all of the encoder learns, and 'as_they_are' in the transformers form",
        "auto",
    )

    def __post_init__(self) -> None:
        """Refuse settings that contradict the form, and write out the pooling that 'auto' stands for."""
        Section.__post_init__(self)
        if self.form == "transformers" and self.inputs not in ("auto", "as_they_are"):
            raise ValueError(
                f"heads.inputs is {self.inputs!r} and heads.form is 'transformers', whose heads read vectors as they "
                "are; take heads.inputs out, or set heads.form to 'mlp'"
            )
        if self.form == "transformers" and self.pooling not in ("auto", "begin"):
            raise ValueError(
                f"heads.pooling is {self.pooling!r} and heads.form is 'transformers', whose sequence head reads the "
                "begin token; set heads.pooling to 'begin', or heads.form to 'mlp'"
            )
        if self.form == "transformers" and self.hidden is not None:
            raise ValueError(
                f"heads.hidden is {self.hidden} and heads.form is 'transformers', whose heads have the encoder's "
                "width; take heads.hidden out, or set heads.form to 'mlp'"
            )
        if self.pooling == "auto":
            object.__setattr__(self, "pooling", "begin" if self.form == "transformers" else "mean")

    def with_inputs(self, all_learns: bool) -> Self:
        """The same with what `inputs = "auto"` stands for, by whether all of the encoder learns."""
        if self.inputs != "auto":
            return self
        if self.form == "transformers":
            return replace(self, inputs="as_they_are")
        return replace(self, inputs="standardised" if all_learns else "whitened")
