"""Parameter groups: which parameters decay, which of them Muon moves, and how fast each group learns.

In: a model. Out: its trainable parameters in named groups. Kept: nothing.
"""

from typing import NotRequired, TypedDict

from torch import Tensor, nn

from pretrain.optimizer.settings import OptimizerSettings


class ParameterGroup(TypedDict):
    """A group as torch's optimizers take it, with a name for readers."""

    name: str
    params: list[nn.Parameter]
    weight_decay: float
    blocks: NotRequired[int]
    """Only where Muon moves this group: how many maps, stacked by rows, each of its matrices holds."""
    lr_scale: NotRequired[float]
    """Factor on the schedule's learning rate for this group; 1 where it is left out."""


def parameter_groups(model: nn.Module, settings: OptimizerSettings) -> list[ParameterGroup]:
    """Trainable parameters in groups, each parameter once, in module order.

    `decay` holds the matrices, the embedding among them; `no_decay` holds biases and LayerNorm weights, which
    have one dimension and set a scale rather than a map. With Muon, the matrices of the encoder's layers come first, in
    groups of their own: `muon_1` holds those that are one map, `muon_3` those that are three maps stacked by rows, and
    so on; the int `blocks` of a matrix's module gives the number (1 where it has none).

    Raises:
        ValueError: `blocks` is not a number that divides the rows, or there is no matrix for Muon.
    """
    muon, weight_decay = settings.name == "muon", settings.weight_decay
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
