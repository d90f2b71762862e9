"""The model that a recipe asks for, before any checkpoint.

In: model settings and a seed. Out: its shape, and its first weights by name, one at a time: a whole model is never made
here, because a process that holds a part of it may have no room for all. Nothing is kept.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from pretrain.model.initialization import FirstWeight, initial_weights, local_attention_init
from pretrain.model.masked_language_model import MaskedLanguageModel
from pretrain.model.presets import PRESETS, EsmShape
from pretrain.model.settings import ModelSettings
from pretrain.model.weights.names import ContactHead

First = tuple[EsmShape, Mapping[str, FirstWeight], ContactHead | None]
"""What a run starts from: shape, weights, and the contact head of a published ESM-2, which is not trained."""


def initializers(
    settings: ModelSettings, seed: int, model_of: Callable[[EsmShape], nn.Module] = MaskedLanguageModel
) -> First:
    """The preset's shape and random weights, or the shape and weights of `settings.init`.

    Args:
        settings: of the recipe.
        seed: of random weights.
        model_of: makes the model; of a head other than that of masked language modelling all weights are random.

    Raises:
        ValueError: `init` does not exist, or is neither an ESM-2 nor an ESM C.
    """
    if settings.init is not None:
        from pretrain.model.weights import io as transformers_io

        shape, weights, contact_head = transformers_io.published(settings.init)
        shape = replace(shape, dropout=settings.dropout)
        model = build_meta(shape, model_of)
        if not isinstance(model, MaskedLanguageModel):
            encoder = {name: weight for name, weight in weights.items() if name.startswith("encoder.")}
            weights = initial_weights(model, seed) | encoder
        return shape, weights, contact_head
    shape = replace(PRESETS[str(settings.preset)], dropout=settings.dropout)
    begins = local_attention_init if settings.start == "neighbours" else initial_weights
    return shape, begins(build_meta(shape, model_of), seed), None


def build_initialized(settings: ModelSettings, seed: int) -> tuple[EsmShape, Mapping[str, FirstWeight]]:
    """Shape and weights of `initializers`."""
    shape, weights, _ = initializers(settings, seed)
    return shape, weights


def build_meta(shape: EsmShape, model_of: Callable[[EsmShape], Any] = MaskedLanguageModel) -> Any:
    """A model whose parameters are on the meta device: names and shapes alone."""
    with torch.device("meta"):
        return model_of(shape)
