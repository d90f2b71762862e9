"""The first weights of a model.

In: a model and a seed. Out: its first weights, by name, made one at a time. Nothing is kept.
"""

import math
from collections.abc import Callable, Sequence
from functools import partial
from hashlib import blake2b

import torch
from torch import Tensor, nn

from pretrain.model.attention.layout import frequencies
from pretrain.model.masked_language_model import MaskedLanguageModel
from pretrain.model.presets import EsmShape
from zymogen import keyed_random

WEIGHT_STD = 0.02
"""Standard deviation of the first weights of linear maps and the embedding, as in transformers' `initializer_range`."""


FirstWeight = Callable[[], Tensor]
"""Draws or reads one whole parameter, float32 on the host."""


def initial_matrix(name: str, size: torch.Size, seed: int) -> Tensor:
    """First value of the matrix called `name`: normal with mean 0 and `WEIGHT_STD`, float32 on the host.

    It depends on its arguments alone: not on the order of construction, the other parameters, the world size or the
    device.
    """
    return torch.empty(size, device="cpu").normal_(0, WEIGHT_STD, generator=generator_of(name, seed))


def generator_of(name: str, seed: int) -> torch.Generator:
    """What draws the first value of the parameter called `name`, on the host; a function of its arguments alone."""
    name_hash = int.from_bytes(blake2b(name.encode(), digest_size=8).digest(), "little")
    return torch.Generator("cpu").manual_seed(keyed_random.key(seed, keyed_random.INITIAL, name_hash))


def initial_weights(model: nn.Module, seed: int) -> dict[str, FirstWeight]:
    """First value of each parameter: `initial_matrix` for a matrix, 1 for a LayerNorm weight, 0 for a bias.

    Args:
        model: gives names and shapes, nothing else; it may be on the meta device.
        seed: seed of the matrices.
    """
    first: dict[str, FirstWeight] = {}
    for prefix, module in model.named_modules():
        for name, parameter in module.named_parameters(recurse=False):
            whole, shape = f"{prefix}.{name}", parameter.shape
            is_scale = isinstance(module, nn.LayerNorm) and name == "weight"
            first[whole] = (
                partial(initial_matrix, whole, shape, seed)
                if parameter.ndim == 2
                else partial(torch.full, tuple(shape), 1.0 if is_scale else 0.0)
            )
    return first


@torch.no_grad()
def initialise(model: nn.Module, seed: int) -> None:
    """Set every parameter in place to its first weight."""
    first = initial_weights(model, seed)
    for name, parameter in model.named_parameters():
        parameter.copy_(first[name]())


# Heads that begin by looking at neighbours --------------------------------------------------------

FARTHEST = 10
"""Distance of the farthest place that a head begins by looking at."""
EMBEDDING_STD = 0.5
"""Standard deviation of an embedding of its own; one that is the head's matrix too keeps `WEIGHT_STD`."""
PEAK = 3.0
"""What each pair of channels adds to a score at its highest; a head of 32 channels gives four fifths of its attention
to one place."""
_QUIET = {"esm2": 0.1, "modern": 0.02}
"""What is left of the drawn queries and keys, by architecture, so that residues hardly change where a head looks."""
_GOLDEN = (math.sqrt(5) - 1) / 2


def parameter_offsets(shape: EsmShape) -> list[list[int]]:
    """The distance at which each head begins by looking, layer by layer: -1, 1, -2, 2 and so on, one head each.

    In the first half of the layers, and up to `FARTHEST`: the heads of the last of these layers begin with -1 again
    where they are left over.
    """
    nearest = [sign * distance for distance in range(1, FARTHEST + 1) for sign in (-1, 1)]
    layers = max(1, min(shape.layers // 2, -(-len(nearest) // shape.heads)))
    of_heads = [nearest[head % len(nearest)] for head in range(layers * shape.heads)]
    return [of_heads[layer * shape.heads : (layer + 1) * shape.heads] for layer in range(layers)]


def local_attention_init(model: MaskedLanguageModel, seed: int) -> dict[str, FirstWeight]:
    """The first weights where heads of the first layers look at one of the `parameter_offsets` each.

    The head at the place d has a constant query and a constant key. Rotary positions turn pair i of their channels by
    ``f_i`` a residue, so with the angle ``f_i d`` between them the score at the distance x is ``PEAK`` times the sum of
    ``cos(f_i (x - d))``, which is largest at d. ESM-2 has biases for constants. ESM C has none: the norm before such a
    layer makes the first channel 1, and its norms of queries and keys set their length.

    A start of ours, in the spirit of Trockman and Kolter 2023 (arXiv:2305.09828), who begin attention as it ends up:
    what stands beside a residue is what a masked language model learns first (docs/decisions.md).
    """
    shape, first = model.shape, initial_weights(model, seed)
    dim, quiet = shape.dim, _QUIET[shape.architecture]
    length = math.sqrt(PEAK * math.sqrt(shape.head_dim))  # of each pair of channels

    def change(name: str, by: Callable[[Tensor], Tensor]) -> None:
        first[name] = partial(_changed, first[name], by)

    def first_channel(value: float) -> Callable[[Tensor], Tensor]:
        return lambda drawn: drawn.index_fill(0, torch.tensor([0]), value)

    for number, of_heads in enumerate(parameter_offsets(shape)):
        layer = f"encoder.layers.{number}.attention"
        query_and_key = torch.cat(_constants(shape, of_heads))

        def look(drawn: Tensor, constant: Tensor = query_and_key) -> Tensor:
            drawn[: 2 * dim] *= quiet
            if shape.is_modern:
                drawn[: 2 * dim, 0] = constant
            return drawn

        def biased(drawn: Tensor, constant: Tensor = query_and_key) -> Tensor:
            return torch.cat([length * constant, drawn[2 * dim :]])

        change(f"{layer}.qkv.weight", look)
        if not shape.is_modern:
            change(f"{layer}.qkv.bias", biased)
            continue
        change(f"{layer}_norm.weight", first_channel(0.0))
        change(f"{layer}_norm.bias", first_channel(1.0))
        for norm in ("query_norm", "key_norm"):  # after these, a pair of channels has a length of √2
            change(f"{layer}.{norm}.weight", lambda drawn: drawn * (length / math.sqrt(2)))
    if shape.is_modern:
        change("encoder.embedding.weight", lambda drawn: drawn * (EMBEDDING_STD / WEIGHT_STD))
    return first


def _changed(drawn: FirstWeight, by: Callable[[Tensor], Tensor]) -> Tensor:
    return by(drawn())


def _constants(shape: EsmShape, of_heads: Sequence[int]) -> tuple[Tensor, Tensor]:
    """Query and key ``(dim,)`` of all heads of a layer, whose pairs of channels have the length 1."""
    turning = frequencies(shape.head_dim, shape.rotary_precision, torch.device("cpu"))
    # Only the angle between query and key matters. These directions add up to about zero, because ESM C's norms of
    # queries and keys take the mean of all channels away.
    of_query = 2 * math.pi * _GOLDEN * torch.arange(shape.dim // 2).view(shape.heads, -1)
    of_key = of_query - torch.tensor(of_heads)[:, None] * turning
    query, key = (torch.cat([angles.cos(), angles.sin()], dim=1).flatten() for angles in (of_query, of_key))
    return query, key
