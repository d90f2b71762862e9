"""What a recipe says about the model: which one, and how it is computed.

In: values of a recipe. Out: frozen dataclasses whose values are checked. Kept: nothing. Torch is not imported, so that
a mistake in a recipe is told at once.
"""

import difflib
from dataclasses import dataclass, fields
from typing import Literal, get_args, get_type_hints

from data.recipe.setting import IDENTITY, OPERATIONAL, require, setting
from pretrain.model.presets import PRESETS


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelSettings:
    """Which encoder, and what it starts from. Exactly one of `preset` and `init`."""

    preset: str | None = setting(IDENTITY, "architecture to start from random weights, such as 'esm2_8m'", default=None)
    init: str | None = setting(
        IDENTITY, "folder or Hub name of an ESM-2 or ESM C to start from; brings its own architecture", default=None
    )
    dropout: float = setting(
        IDENTITY, "dropout behind attention and feed-forward (ESM-2: 0)", unit="probability", default=0.0
    )

    def __post_init__(self) -> None:
        require(0.0 <= self.dropout < 1.0, "model.dropout", self.dropout, "it must lie in [0, 1)")
        if (self.preset is None) == (self.init is None):
            raise ValueError(
                f"model.preset is {self.preset!r} and model.init is {self.init!r}; give exactly one: a preset to "
                "train from scratch, or init to continue from published weights"
            )
        if self.preset is not None and self.preset not in PRESETS:
            nearest = difflib.get_close_matches(self.preset, PRESETS, 1, 0.0)[0]
            raise ValueError(f"model.preset is {self.preset!r}; the nearest is {nearest!r}, all: {', '.join(PRESETS)}")


@dataclass(frozen=True, kw_only=True, slots=True)
class ComputeSettings:
    """How the model is computed; nothing here changes what is learned."""

    attention: Literal[
        "auto", "varlen", "varlen_fa2", "varlen_fa3", "varlen_fa4", "flash_cpu", "per_document", "dense"
    ] = setting(
        OPERATIONAL,
        "backend; 'auto' takes the best that this machine has, and 'varlen' the best FlashAttention",
        default="auto",
    )
    checkpointing: Literal["none", "selective", "layer"] = setting(
        OPERATIONAL,
        "what the backward pass computes again to save memory: norms and feed-forward ('selective') or whole layers",
        default="none",
    )
    compile: Literal["auto", "on", "off"] = setting(
        OPERATIONAL, "torch.compile of the layers; 'auto': on a GPU, if a first step works", default="auto"
    )
    tf32: bool = setting(
        OPERATIONAL,
        "float32 products on a GPU in TensorFloat-32: 10 bits of mantissa, not 23, and several times as fast",
        default=True,
    )

    def __post_init__(self) -> None:
        for f in fields(self):
            allowed = get_args(get_type_hints(type(self))[f.name]) or (False, True)
            value = getattr(self, f.name)
            require(value in allowed, f"compute.{f.name}", value, f"allowed are {', '.join(map(repr, allowed))}")
