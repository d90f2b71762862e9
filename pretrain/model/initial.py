"""How weights begin, and which of them decay.

In: a model and a seed. Out: the model with its first weights; its parameters in named groups. Nothing is kept.
"""

from hashlib import blake2b
from typing import TypedDict

import torch
from torch import Tensor, nn

from data import draw

WEIGHT_STD = 0.02
"""Standard deviation of the first weights of linear maps and the embedding, as in transformers' `initializer_range`."""


class ParameterGroup(TypedDict):
    """What torch's optimizers take, and a name for reading."""

    name: str
    params: list[nn.Parameter]
    weight_decay: float


def initial_matrix(name: str, size: torch.Size, seed: int) -> Tensor:
    """First value of the matrix called `name`: normal with mean 0 and `WEIGHT_STD`, float32 on the host.

    A function of its arguments alone: neither the order of construction, nor the other parameters, nor the world size,
    nor the device have a part in it.
    """
    name_hash = int.from_bytes(blake2b(name.encode(), digest_size=8).digest(), "little")
    generator = torch.Generator("cpu").manual_seed(draw.key(seed, draw.INITIAL, name_hash))
    return torch.empty(size, device="cpu").normal_(0, WEIGHT_STD, generator=generator)


@torch.no_grad()
def initialise(model: nn.Module, seed: int) -> None:
    """Set every parameter in place: matrices by `initial_matrix`, LayerNorm weights to 1, every bias to 0."""
    for prefix, module in model.named_modules():
        for name, parameter in module.named_parameters(recurse=False):
            if parameter.ndim == 2:
                parameter.copy_(initial_matrix(f"{prefix}.{name}", parameter.shape, seed))
            else:
                parameter.fill_(1.0 if isinstance(module, nn.LayerNorm) and name == "weight" else 0.0)


def parameter_groups(model: nn.Module, weight_decay: float) -> list[ParameterGroup]:
    """Trainable parameters in two groups, each parameter once.

    `decay` holds the matrices, the embedding among them; `no_decay` holds biases and LayerNorm weights, which
    have one dimension and set a scale rather than a map.
    """
    trainable = [p for p in model.parameters() if p.requires_grad]
    return [
        {
            "name": "decay",
            "params": [p for p in trainable if p.ndim >= 2],
            "weight_decay": weight_decay,
        },
        {"name": "no_decay", "params": [p for p in trainable if p.ndim < 2], "weight_decay": 0.0},
    ]
