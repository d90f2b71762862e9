"""The first weights of a model.

In: a model and a seed. Out: its first weights, by name, made one at a time. Nothing is kept.
"""

from collections.abc import Callable
from functools import partial
from hashlib import blake2b

import torch
from torch import Tensor, nn

from data import draw

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
    return torch.Generator("cpu").manual_seed(draw.key(seed, draw.INITIAL, name_hash))


def first_weights(model: nn.Module, seed: int) -> dict[str, FirstWeight]:
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
    first = first_weights(model, seed)
    for name, parameter in model.named_parameters():
        parameter.copy_(first[name]())
