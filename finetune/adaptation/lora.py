"""LoRA, rsLoRA and DoRA inside of an encoder, by peft's layers.

In: a model on the meta device whose attribute `encoder` is ours, and a plan. Out: the model with adapters, first values
of their parameters, adapters and merged weights of a trained model's parameters. Nothing is kept.

peft puts a layer of its own in the place of each adapted map, so that ``PATH.weight`` becomes
``PATH.base_layer.weight``, and beside it come ``PATH.lora_A.default.weight``, ``PATH.lora_B.default.weight`` and, with
DoRA, ``PATH.lora_magnitude_vector.default.weight``. It is injected, not wrapped around the model, so that engines and
checkpoints still find the encoder.
"""

import math
from collections.abc import Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from finetune.adaptation.adapter import AdapterPlan, LowRank
from finetune.adaptation.settings import TARGETS, AdaptationSettings
from pretrain.model.build import build_meta
from pretrain.model.initialization import FirstWeight, generator_of
from pretrain.model.linear import Linear
from pretrain.model.presets import EsmShape
from zymogen.settings.section import unknown_word

_NAME = "default"
"""peft's name for an adapter that is given none."""
_A, _B, _MAGNITUDE = (f".{part}.{_NAME}.weight" for part in ("lora_A", "lora_B", "lora_magnitude_vector"))
_BASE = ".base_layer"
_LAYERS = "encoder.layers."


def is_adapters(name: str) -> bool:
    """Whether a parameter of this name belongs to an adapter."""
    return name.endswith((_A, _B, _MAGNITUDE))


def plain_name(name: str) -> str:
    """Name of a parameter of the base as it is without adapters."""
    return name.replace(f"{_BASE}.", ".")


def plan_of(settings: AdaptationSettings, shape: EsmShape) -> AdapterPlan:
    """What the recipe asks for, for an encoder of this shape.

    Raises:
        ValueError: a target is no linear map of the encoder; the nearest is named.
    """
    paths = linear_maps(shape)
    inside = {path: path.removeprefix(_LAYERS).partition(".")[2] for path in paths}
    chosen: set[str] = set()
    for target in settings.targets:
        found = {path for path in paths if target in (path, inside[path])}
        if not found:
            here = [name for name in TARGETS if name in inside.values()]
            words = [*paths, *here] if target.startswith(_LAYERS) else here
            raise ValueError(unknown_word("adaptation.targets", target, words))
        chosen |= found
    maps = tuple(path for path in paths if path in chosen)
    return AdapterPlan(maps, settings.rank, settings.alpha, settings.use_rslora, settings.use_dora)


def linear_maps(shape: EsmShape) -> dict[str, tuple[int, int]]:
    """Full path of every linear map in the layers of an encoder -> (out, in), in the order of the model."""
    return {
        path: (module.out_features, module.in_features)
        for path, module in build_meta(shape).named_modules()
        if isinstance(module, nn.Linear) and path.startswith(_LAYERS)
    }


def inject(model: nn.Module, plan: AdapterPlan) -> None:
    """Put adapters into a model on the meta device; afterwards theirs are the only parameters that are trained.

    Their maps are this project's own `Linear`, so that bfloat16 costs no more on a CPU that emulates it.
    """
    from peft import LoraConfig, inject_adapter_in_model  # takes seconds to import

    alpha: Any = plan.scale * plan.rank
    config = LoraConfig(r=plan.rank, lora_alpha=alpha, target_modules=list(plan.maps), use_dora=plan.use_dora)
    with torch.device("meta"):
        inject_adapter_in_model(config, model, _NAME)
        for path in plan.maps:
            layer: Any = model.get_submodule(path)
            for maps in (layer.lora_A, layer.lora_B):
                theirs = maps[_NAME]
                assert theirs.bias is None
                maps[_NAME] = Linear(theirs.in_features, theirs.out_features, bias=False)
            # peft would widen a bfloat16 input, which `Linear` then rounds once more. DoRA computes the lengths of rows
            # in the dtype of the input.
            layer.cast_input_dtype_enabled = plan.use_dora


def first_of_adapters(
    model: nn.Module,
    plan: AdapterPlan,
    weights: Mapping[str, FirstWeight],
    seed: int,
) -> dict[str, FirstWeight]:
    """First values of the adapters' parameters, by name.

    A is uniform within ``1 / sqrt(in)``, which is peft's bound (He et al. 2015, arXiv:1502.01852, with a = sqrt(5)),
    drawn with the key of its name and the seed; B is 0; a magnitude is the length of its row of the base weights.

    Args:
        model: as `inject` left it.
        plan: which maps have adapters.
        weights: of the base, by their names without adapters.
        seed: seed of the run.
    """
    first: dict[str, FirstWeight] = {}
    for path in plan.maps:
        a, b = (model.get_parameter(path + part).shape for part in (_A, _B))
        first[path + _A] = partial(_uniform, path + _A, a, seed)
        first[path + _B] = partial(torch.zeros, tuple(b), device="cpu")
        if plan.use_dora:
            first[path + _MAGNITUDE] = partial(_lengths, weights[f"{path}.weight"])
    return first


def _uniform(name: str, size: torch.Size, seed: int) -> Tensor:
    bound = 1 / math.sqrt(size[1])
    return torch.empty(size, device="cpu").uniform_(-bound, bound, generator=generator_of(name, seed))


def _lengths(base: FirstWeight) -> Tensor:
    lengths: Tensor = torch.linalg.vector_norm(base(), dim=1)
    return lengths


def adapter_of(parameters: Mapping[str, Tensor], plan: AdapterPlan) -> dict[str, LowRank]:
    """The adapters among a model's parameters, by the full path of their map.

    Args:
        parameters: by name, whole, float32 on the host, such as those of a checkpoint.
        plan: the plan that the model was built with.
    """
    return {
        path: LowRank(
            parameters[path + _A],
            parameters[path + _B],
            plan.scale,
            parameters[path + _MAGNITUDE] if plan.use_dora else None,
        )
        for path in plan.maps
    }


def merged(parameters: Mapping[str, Tensor], plan: AdapterPlan) -> dict[str, Tensor]:
    """A model's parameters without adapters: their products are in the weights, under the plain names.

    Args:
        parameters: all of the model with adapters, as for `adapter_of`. They are not changed, and those of maps without
            an adapter are not copied.
        plan: the plan that the model was built with.
    """
    adapter = adapter_of(parameters, plan)
    plain = {plain_name(name): tensor for name, tensor in parameters.items() if not is_adapters(name)}
    return plain | {f"{path}.weight": of_map.merged(plain[f"{path}.weight"]) for path, of_map in adapter.items()}
