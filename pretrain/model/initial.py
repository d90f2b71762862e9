"""How weights begin, and which of them decay.

In: a model and a seed. Out: its first weights, by name and one at a time; its parameters in named groups. Nothing is
kept.
"""

from collections.abc import Callable
from functools import partial
from hashlib import blake2b
from typing import NotRequired, TypedDict

import torch
from torch import Tensor, nn

from data import draw

WEIGHT_STD = 0.02
"""Standard deviation of the first weights of linear maps and the embedding, as in transformers' `initializer_range`."""


FirstWeight = Callable[[], Tensor]
"""Draws or reads one whole parameter, float32 on the host."""


class ParameterGroup(TypedDict):
    """What torch's optimizers take, and a name for reading."""

    name: str
    params: list[nn.Parameter]
    weight_decay: float
    blocks: NotRequired[int]
    """Muon moves this group: of how many maps each of its matrices is made, stacked by rows."""


def initial_matrix(name: str, size: torch.Size, seed: int) -> Tensor:
    """First value of the matrix called `name`: normal with mean 0 and `WEIGHT_STD`, float32 on the host.

    A function of its arguments alone: neither the order of construction, nor the other parameters, nor the world size,
    nor the device have a part in it.
    """
    name_hash = int.from_bytes(blake2b(name.encode(), digest_size=8).digest(), "little")
    generator = torch.Generator("cpu").manual_seed(draw.key(seed, draw.INITIAL, name_hash))
    return torch.empty(size, device="cpu").normal_(0, WEIGHT_STD, generator=generator)


def first_weights(model: nn.Module, seed: int) -> dict[str, FirstWeight]:
    """What each parameter begins as: matrices as `initial_matrix`, LayerNorm weights as 1, every bias as 0.

    Args:
        model: gives names and shapes, which are all that is kept of it; it may be on the meta device.
        seed: of the matrices.
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


def parameter_groups(model: nn.Module, weight_decay: float, *, muon: bool = False) -> list[ParameterGroup]:
    """Trainable parameters in groups, each parameter once, in module order.

    `decay` holds the matrices, the embedding among them; `no_decay` holds biases and LayerNorm weights, which
    have one dimension and set a scale rather than a map. With `muon`, the matrices of the encoder's layers stand before
    them in groups of their own: `muon_1` those that are one map, `muon_3` those that are three stacked by rows, and so
    on, as the int `blocks` of the module that owns them says (1 where there is none).

    Raises:
        ValueError: `blocks` is no count that divides the rows, or there is no matrix for Muon.
    """
    by_blocks: dict[int, list[nn.Parameter]] = {}
    decay: list[nn.Parameter] = []
    no_decay: list[nn.Parameter] = []
    seen: set[nn.Parameter] = set()
    for prefix, module in model.named_modules():
        for name, parameter in module.named_parameters(recurse=False):
            if parameter in seen or not parameter.requires_grad:
                continue
            seen.add(parameter)
            if muon and parameter.ndim == 2 and prefix.startswith("encoder.layers."):
                by_blocks.setdefault(_blocks(module, f"{prefix}.{name}", parameter), []).append(parameter)
            else:
                (decay if parameter.ndim >= 2 else no_decay).append(parameter)
    if muon and not by_blocks:
        raise ValueError(
            f"no trainable matrix of {type(model).__name__} is called encoder.layers.*, which is what Muon moves; "
            "set optimizer.name to 'adamw'"
        )
    groups: list[ParameterGroup] = [
        {"name": f"muon_{blocks}", "params": by_blocks[blocks], "weight_decay": weight_decay, "blocks": blocks}
        for blocks in sorted(by_blocks)
    ]
    return [
        *groups,
        {"name": "decay", "params": decay, "weight_decay": weight_decay},
        {"name": "no_decay", "params": no_decay, "weight_decay": 0.0},
    ]


def _blocks(owner: nn.Module, name: str, matrix: Tensor) -> int:
    blocks = getattr(owner, "blocks", 1)
    if not isinstance(blocks, int) or blocks < 1 or matrix.shape[0] % blocks:
        raise ValueError(
            f"{name} has {matrix.shape[0]} rows and its module says blocks = {blocks!r}; it must be the number of maps "
            "that are stacked by rows, which divides them"
        )
    return blocks
