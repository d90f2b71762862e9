"""The model that a recipe asks for, before any checkpoint.

In: model settings and a seed. Out: its shape, and its first weights by name, one at a time: a whole model is never made
here, because a process that holds a part of it may have no room for all. Nothing is kept.
"""

from collections.abc import Mapping
from dataclasses import replace

import torch

from pretrain.model.initial import FirstWeight, first_weights
from pretrain.model.masked_language_model import MaskedLanguageModel
from pretrain.model.presets import PRESETS, EsmShape
from pretrain.model.settings import ModelSettings


def first_model(settings: ModelSettings, seed: int) -> tuple[EsmShape, Mapping[str, FirstWeight]]:
    """The preset's shape and random weights, or the shape and weights of `settings.init`.

    Raises:
        ValueError: `init` is not there, or is neither an ESM-2 nor an ESM C.
    """
    if settings.init is not None:
        from pretrain.model.weights import io as transformers_io

        published, weights = transformers_io.read(settings.init)
        return replace(published, dropout=settings.dropout), weights
    shape = replace(PRESETS[str(settings.preset)], dropout=settings.dropout)
    return shape, first_weights(without_memory(shape), seed)


def without_memory(shape: EsmShape) -> MaskedLanguageModel:
    """A model whose parameters are on the meta device: names and shapes alone."""
    with torch.device("meta"):
        return MaskedLanguageModel(shape)


def build_model(settings: ModelSettings, seed: int) -> MaskedLanguageModel:
    """The whole model in float32 on the host, for a process that needs no engine.

    Raises:
        ValueError: as `first_model`.
    """
    shape, first = first_model(settings, seed)
    model = without_memory(shape).to_empty(device="cpu")
    for name, parameter in model.state_dict().items():
        parameter.copy_(first[name]())
    return model
