"""Shapes of ESM-2 encoders: the published sizes and small ones for tests and the quickstart.

In: nothing. Out: `EsmShape`, everything that decides which function the weights compute. Nothing is kept.

Published sizes: Lin et al., 2023, table S1 (doi:10.1126/science.ade2574).
"""

from dataclasses import dataclass
from typing import Literal, get_args

from data.alphabet import TOKENS

VOCABULARY = len(TOKENS)
"""Number of token ids: embedding rows and logits per slot."""

RotaryPrecision = Literal["float32", "float16", "bfloat16"]


@dataclass(frozen=True, slots=True)
class EsmShape:
    """What an ESM-2 encoder is made of; the feed-forward width is 4 times `dim`, the vocabulary ESM-2's 33 tokens."""

    layers: int
    """Number of layers."""
    dim: int
    """Width of the residual stream."""
    heads: int
    """Attention heads; `dim` divided by it must be even, because rotary positions turn pairs of channels."""
    token_dropout: bool = True
    """Zero the embedding of <mask> and rescale the rest of the document, as ESM does, in training and evaluation."""
    dropout: float = 0.0
    """Probability that a channel of what a sublayer adds to the residual stream is dropped, in training."""
    layer_norm_eps: float = 1e-5
    """Added to the variance by every LayerNorm."""
    rotary_precision: RotaryPrecision = "float32"
    """Type that the rotary frequencies are rounded to. The published ESM-2 were trained with float16 parameters, and
    their frequencies went through float16 too: at position 1,000 that is up to 0.24 radians, so weights must keep the
    frequencies they were trained with. `transformers_io` reads it off the weights."""

    def __post_init__(self) -> None:
        """Refuse shapes that cannot be built."""
        for name in ("layers", "dim", "heads"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} = {getattr(self, name)}: must be at least 1")
        if self.dim % self.heads or self.head_dim % 2:
            raise ValueError(
                f"dim = {self.dim} over heads = {self.heads} gives {self.dim / self.heads:g} channels a head: must be "
                "an even whole number (rotary positions turn pairs of channels); change dim or heads"
            )
        if not 0 <= self.dropout < 1:
            raise ValueError(f"dropout = {self.dropout}: must be at least 0 and below 1")
        if not self.layer_norm_eps > 0:
            raise ValueError(f"layer_norm_eps = {self.layer_norm_eps}: must be above 0 (ESM-2 uses 1e-5)")
        if self.rotary_precision not in get_args(RotaryPrecision):
            raise ValueError(
                f"rotary_precision = {self.rotary_precision!r}: must be one of {', '.join(get_args(RotaryPrecision))}"
            )

    @property
    def head_dim(self) -> int:
        """Channels of one attention head."""
        return self.dim // self.heads

    @property
    def feed_forward_dim(self) -> int:
        """Width inside the feed-forward sublayer."""
        return 4 * self.dim


PRESETS: dict[str, EsmShape] = {
    "esm2_60k": EsmShape(layers=2, dim=48, heads=4),
    "esm2_800k": EsmShape(layers=4, dim=128, heads=4),
    "esm2_8m": EsmShape(layers=6, dim=320, heads=20),
    "esm2_35m": EsmShape(layers=12, dim=480, heads=20),
    "esm2_150m": EsmShape(layers=30, dim=640, heads=20),
    "esm2_650m": EsmShape(layers=33, dim=1280, heads=20),
    "esm2_3b": EsmShape(layers=36, dim=2560, heads=40),
    "esm2_15b": EsmShape(layers=48, dim=5120, heads=40),
}
"""Shapes by name; the name says the number of parameters."""
