"""The model that a recipe asks for, before any checkpoint.

In: model settings and a seed. Out: a `MaskedLanguageModel` in float32 on the host. Nothing is kept.
"""

from dataclasses import replace

import torch

from pretrain.model.initial import initialise
from pretrain.model.masked_language_model import MaskedLanguageModel
from pretrain.model.presets import PRESETS
from pretrain.recipe import ModelSettings


def build_model(settings: ModelSettings, seed: int) -> MaskedLanguageModel:
    """Random weights in the preset's shape, or the weights of `settings.init`.

    Raises:
        ValueError: `init` is not there, or is neither an ESM-2 nor an ESM C.
    """
    if settings.init is not None:
        from pretrain.model import transformers_io

        published = transformers_io.load(settings.init)
        if settings.dropout == published.shape.dropout:
            return published
        model = MaskedLanguageModel(replace(published.shape, dropout=settings.dropout))
        model.load_state_dict(published.state_dict())
        return model
    with torch.device("meta"):
        model = MaskedLanguageModel(replace(PRESETS[str(settings.preset)], dropout=settings.dropout))
    model.to_empty(device="cpu")
    initialise(model, seed)
    return model
