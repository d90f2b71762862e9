"""Shapes of encoders: ESM-2's published sizes, ESM C's and smaller ones of its shape, and small ones for tests.

In: nothing. Out: `EsmShape`, everything that decides which function the weights compute. Nothing is kept.

ESM-2's sizes: Lin et al., 2023, table S1 (doi:10.1126/science.ade2574). ESM C's: its published 300M and 600M; those
below are ours, as deep and wide as the ESM-2 of the same name, with heads of 48 or 64 channels.
"""

from dataclasses import dataclass
from typing import ClassVar, Literal

from data.alphabet import TOKENS
from zymogen.settings.section import Section, bounded

VOCABULARY = len(TOKENS)
"""Number of token ids: embedding rows and logits per slot of an ESM-2."""

MODERN_VOCABULARY = 64
"""The same of an ESM C: ids from `VOCABULARY` on have no meaning; they make the matrices a multiple of 64."""

Architecture = Literal["esm2", "modern"]

RotaryPrecision = Literal["float32", "float16", "bfloat16"]


@dataclass(frozen=True, slots=True)
class EsmShape(Section):
    """The sizes of an encoder, and which of two architectures it has.

    `esm2` is ESM-2's: biases, GELU of width 4 `dim`, a head tied to the embedding, token dropout. `modern` is ESM C's
    (EvolutionaryScale, 2024): maps without bias, a LayerNorm over all channels of queries and of keys, SwiGLU, updates
    divided by ``sqrt(layers / 36)``, a head of its own, no token dropout.
    """

    section: ClassVar = "shape"
    layers: int = bounded(at_least=1)
    """Number of layers."""
    dim: int = bounded(at_least=1)
    """Width of the residual stream."""
    heads: int = bounded(at_least=1)
    """Attention heads; `dim` divided by it must be even, because rotary positions turn pairs of channels."""
    architecture: Architecture = "esm2"
    """Which layers and which head."""
    token_dropout: bool = True
    """Zero the embedding of <mask> and rescale the rest of the document, as ESM-2 does, in training and evaluation."""
    dropout: float = bounded(0.0, at_least=0, below=1)
    """Probability that a channel of what a sublayer adds to the residual stream is dropped, in training."""
    layer_norm_eps: float = bounded(1e-5, above=0)
    """Added to the variance by every LayerNorm."""
    rotary_precision: RotaryPrecision = "float32"
    """Type that the rotary frequencies are rounded to. The published ESM-2 were trained with float16 parameters, and
    their frequencies went through float16 too: at position 1,000 that is up to 0.24 radians, so weights must keep the
    frequencies they were trained with. `weights.source` recognises it by the stored frequencies."""

    def __post_init__(self) -> None:
        """Refuse shapes that cannot be built."""
        Section.__post_init__(self)
        if self.is_modern and (self.token_dropout or self.rotary_precision != "float32"):
            raise ValueError(
                f"token_dropout = {self.token_dropout}, rotary_precision = {self.rotary_precision!r}: must be False, "
                "'float32' in the modern architecture, because transformers' ESM C has neither; use architecture 'esm2'"
            )
        if self.dim % self.heads or self.head_dim % 2:
            raise ValueError(
                f"dim = {self.dim} over heads = {self.heads} gives {self.dim / self.heads:g} channels a head: must be "
                "an even whole number (rotary positions turn pairs of channels); change dim or heads"
            )

    @property
    def head_dim(self) -> int:
        """Channels of one attention head."""
        return self.dim // self.heads

    @property
    def feed_forward_dim(self) -> int:
        """Width inside the feed-forward sublayer: 4 `dim`, or 8/3 of it rounded up to a multiple of 128."""
        return -(-8 * self.dim // 384) * 128 if self.is_modern else 4 * self.dim

    @property
    def is_modern(self) -> bool:
        """Whether this is ESM C's architecture."""
        return self.architecture == "modern"

    @property
    def vocabulary(self) -> int:
        """Rows of the embedding and logits per slot."""
        return MODERN_VOCABULARY if self.is_modern else VOCABULARY

    @property
    def num_parameters(self) -> int:
        """Number of parameters of the encoder and its head.

        A layer of ESM-2 has 12 dim^2 weights and 13 dim of biases and norms; one of ESM C's architecture 4 dim^2 + 3
        dim W weights, W being the feed-forward width, and 6 dim of norms. Outside are the embedding, the head (dim^2 +
        3 dim, a bias for each token id, and in ESM C's architecture a matrix of its own) and the last norm.
        """
        dim, vocabulary = self.dim, self.vocabulary
        head = dim * dim + 3 * dim + vocabulary
        if self.is_modern:
            layer = 4 * dim * dim + 3 * dim * self.feed_forward_dim + 6 * dim
            return self.layers * layer + dim + 2 * vocabulary * dim + head
        return self.layers * (12 * dim * dim + 13 * dim) + 2 * dim + vocabulary * dim + head

    @property
    def update_scale(self) -> float:
        """Factor on what a sublayer adds to the residual stream."""
        return (36 / self.layers) ** 0.5 if self.is_modern else 1.0


def _modern(layers: int, dim: int, heads: int) -> EsmShape:
    return EsmShape(layers, dim, heads, architecture="modern", token_dropout=False)


PRESETS: dict[str, EsmShape] = {
    "esm2_60k": EsmShape(layers=2, dim=48, heads=4),
    "esm2_800k": EsmShape(layers=4, dim=128, heads=4),
    "esm2_8m": EsmShape(layers=6, dim=320, heads=20),
    "esm2_35m": EsmShape(layers=12, dim=480, heads=20),
    "esm2_150m": EsmShape(layers=30, dim=640, heads=20),
    "esm2_650m": EsmShape(layers=33, dim=1280, heads=20),
    "esm2_3b": EsmShape(layers=36, dim=2560, heads=40),
    "esm2_15b": EsmShape(layers=48, dim=5120, heads=40),
    "modern_60k": _modern(layers=2, dim=48, heads=2),
    "modern_800k": _modern(layers=4, dim=128, heads=4),
    "modern_8m": _modern(layers=6, dim=320, heads=5),
    "modern_35m": _modern(layers=12, dim=480, heads=10),
    "modern_150m": _modern(layers=30, dim=640, heads=10),
    "modern_300m": _modern(layers=30, dim=960, heads=15),
    "modern_600m": _modern(layers=36, dim=1152, heads=18),
}
"""Shapes by name; the name says the number of parameters."""
