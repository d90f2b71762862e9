"""What a recipe says about the heads.

In: values of a recipe. Out: a frozen dataclass whose values are checked. Kept: nothing. Torch is not imported.
"""

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from finetune.heads.kinds import Head, head_kind
from zymogen.settings.extension import FORM, is_external, require_name
from zymogen.settings.section import IDENTITY, Section, require, setting

FORMS = ("mlp", "transformers")
"""Heads of ours (`kinds`)."""

PoolingRequest = Literal["auto", "mean", "attention", "begin"]


@dataclass(frozen=True, kw_only=True, slots=True)
class HeadSettings(Section):
    """Heads of all tasks: how a sequence becomes one vector, and what maps a vector to numbers."""

    section: ClassVar = "heads"
    form: str = setting(
        IDENTITY,
        "'mlp': LayerNorm and two maps; 'transformers': as in EsmForSequenceClassification, "
        f"EsmForTokenClassification; or {FORM} for a class of your own",
        "mlp",
        extends="class",
    )
    options: dict[str, Any] = setting(IDENTITY, "settings of a class of your own", {})
    pooling: PoolingRequest = setting(
        IDENTITY,
        "a sequence's vector: mean of its residues, mean weighted by learned attention, or its begin token's; 'auto' "
        "is what the head says: 'mean', or 'begin' in the transformers form",
        "auto",
    )
    hidden: int | None = setting(
        IDENTITY,
        "width between the two maps of a head; without one, the encoder's",
        None,
        "channels",
        at_least=1,
    )

    def __post_init__(self) -> None:
        """Refuse settings that contradict the form."""
        Section.__post_init__(self)
        require_name("heads.form", self.form, FORMS)
        if not is_external(self.form):
            said = f"only a class of your own reads it, and heads.form is {self.form!r}"
            require(not self.options, "heads.options", self.options, said)
            if self.kind.exports_to_transformers:
                said = f"heads.form is {self.form!r}, whose sequence head reads the begin token; set heads.pooling to "
                require(
                    self.pooled_by == "begin", "heads.pooling", self.pooling, f"{said}'begin', or heads.form to 'mlp'"
                )
                said = f"heads.form = {self.form!r} does not read it: take it out (heads.hidden=none)"
                require(self.hidden is None, "heads.hidden", self.hidden, said)

    @property
    def kind(self) -> Head:
        """The head; one of the user's is imported here.

        Raises:
            ValueError: it cannot be imported, or an option is not allowed.
        """
        return head_kind(self)

    @property
    def pooled_by(self) -> str:
        """How a sequence becomes one vector, "auto" written out."""
        return self.kind.default_pooling if self.pooling == "auto" else self.pooling
