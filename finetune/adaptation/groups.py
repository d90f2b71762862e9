"""Parameter groups of a fine-tuned model: heads learn faster, and lower layers slower if all of the encoder learns.

In: an adapted model and what the recipe says. Out: named groups for an optimizer. Nothing is kept.
"""

import re

from torch import nn

from finetune.adaptation.settings import AdaptationSettings
from pretrain.trained_model import ENCODER
from zymogen.trainer.optimizer import kinds
from zymogen.trainer.optimizer.kinds import ParameterGroup
from zymogen.trainer.optimizer.settings import OptimizerSettings

_LAYER = re.compile(r"encoder\.layers\.(\d+)\.")


def parameter_groups(
    model: nn.Module, settings: AdaptationSettings, optimizer: OptimizerSettings
) -> list[ParameterGroup]:
    """What is trained, each parameter once: named ``PART/KIND``, with KIND one of pretraining's groups.

    PART is `head`, whose rate is `head_lr` times the schedule's; `adapter`; or, where all of the encoder learns,
    `final_norm`, `layer_I` and `embedding`: the final norm learns at the schedule's rate, the top layer at
    `layer_decay` of it, and each part below at `layer_decay` of the rate of the one above, the embedding last (Clark et
    al. 2020, arXiv:2003.10555, appendix B). Matrices decay; biases, norms and magnitudes do not. Heads and adapters are
    AdamW's also where Muon moves the matrices of the layers.

    Raises:
        ValueError: Muon was asked for, and no matrix of a layer is trained.
    """
    if settings.kind != "full" and kinds.optimizer_class(optimizer.name).moves_layer_matrices:
        raise ValueError(
            f"optimizer.name is {optimizer.name!r}, which moves matrices of the encoder's layers, and with "
            f"adaptation.kind = {settings.kind!r} none of them is trained: heads and adapters are AdamW's; set "
            "optimizer.name to 'adamw', or adaptation.kind to 'full'"
        )
    names = {parameter: name for name, parameter in model.named_parameters()}
    depths = [int(found[1]) for name in names.values() if (found := _LAYER.match(name))]
    layers = max(depths, default=-1) + 1
    parts: dict[str, ParameterGroup] = {}
    for group in kinds.parameter_groups(model, optimizer):
        for parameter in group["params"]:
            part, scale = _part(names[parameter], layers, settings)
            name = f"{part}/{group['name']}"
            of_part = parts.setdefault(name, {**group, "name": name, "params": [], "lr_scale": scale})
            of_part["params"].append(parameter)
    return list(parts.values())


def _part(name: str, layers: int, settings: AdaptationSettings) -> tuple[str, float]:
    """The part that a trained parameter belongs to, and its factor on the learning rate."""
    if not name.startswith(ENCODER):
        return "head", settings.head_lr
    if settings.kind == "lora":
        return "adapter", 1.0
    if found := _LAYER.match(name):
        depth = int(found[1])
        return f"layer_{depth}", settings.layer_decay ** (layers - depth)
    if name.startswith(f"{ENCODER}embedding"):
        return "embedding", settings.layer_decay ** (layers + 1)
    return "final_norm", 1.0
