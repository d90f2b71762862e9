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
        ValueError: `init` does not exist, or is neither an ESM-2 nor an ESM C.
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
