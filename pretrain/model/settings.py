"""What a recipe says about the model: which one, and how it is computed.

In: values of a recipe. Out: frozen dataclasses whose values are checked. Kept: nothing. Torch is not imported, so that
a mistake in a recipe is reported at once.
"""

import json
from dataclasses import dataclass
from typing import ClassVar, Literal

from pretrain.model.presets import PRESETS
from zymogen.settings.section import IDENTITY, OPERATIONAL, Section, require, require_known, setting

Checkpointing = Literal["none", "selective", "layer"]
"""What the backward pass computes again instead of keeping it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelSettings(Section):
    """Which encoder, and what it starts from. Exactly one of `preset` and `init` is given."""

    section: ClassVar = "model"
    preset: str | None = setting(IDENTITY, "architecture to start from random weights, such as 'esm2_8m'", None)
    init: str | None = setting(
        IDENTITY, "folder or Hub name of an ESM-2 or ESM C to start from; brings its own architecture", None, "path"
    )
    start: Literal["published", "neighbours"] = setting(
        IDENTITY,
        "how random weights begin: as ESM-2's did, or with heads of the first layers that look at neighbours",
        "published",
    )
    dropout: float = setting(
        IDENTITY, "dropout after attention and feed-forward (ESM-2: 0)", 0.0, "probability", at_least=0, below=1
    )

    def __post_init__(self) -> None:
        Section.__post_init__(self)
        preset = f"preset = {json.dumps(self.preset)}"
        out, lines = "model.preset=none", f"the line {preset}"
        if self.start != "published":  # it is about random weights, too
            out, lines = f"{out} model.start=none", f"the lines {preset} and start = {json.dumps(self.start)}"
        if (self.preset is None) == (self.init is None):
            raise ValueError(
                f"model.preset is {self.preset!r} and model.init is {self.init!r}; give exactly one: "
                + (
                    "a preset to train from scratch, or init to continue from published weights"
                    if self.preset is None
                    else f"to continue from the weights, take the preset out: add {out} to the command, or delete "
                    f"{lines} of the recipe; to train from scratch, take model.init out"
                )
            )
        if self.preset is not None:
            require_known("model.preset", self.preset, PRESETS)
        said = f"weights are read from model.init = {self.init!r}, and none is random: take model.start out"
        require(self.init is None or self.start == "published", "model.start", self.start, said)


@dataclass(frozen=True, kw_only=True, slots=True)
class ComputeSettings(Section):
    """How the model is computed; nothing here changes what is learned."""

    section: ClassVar = "compute"
    attention: Literal["auto", "varlen", "flash_cpu", "per_document", "dense"] = setting(
        OPERATIONAL, "backend; 'auto' takes the best that this machine has", "auto"
    )
    checkpointing: Checkpointing = setting(
        OPERATIONAL,
        "what the backward pass computes again to save memory: norms and feed-forward ('selective') or whole layers",
        "none",
    )
    compile: Literal["auto", "on", "off"] = setting(
        OPERATIONAL, "torch.compile of the layers; 'auto': on a GPU, if a first step works", "auto"
    )
    tf32: bool = setting(
        OPERATIONAL,
        "float32 products on a GPU in TensorFloat-32: 10 bits of mantissa, not 23, and several times as fast",
        True,
    )
