"""Whole models of ours on the host, from a recipe's settings or from transformers' files."""

from collections.abc import Mapping
from pathlib import Path

from torch import Tensor

from pretrain.model.build import build_initialized, build_meta
from pretrain.model.initialization import FirstWeight
from pretrain.model.masked_language_model import MaskedLanguageModel
from pretrain.model.presets import EsmShape
from pretrain.model.settings import ModelSettings
from pretrain.model.weights import io as transformers_io
from pretrain.model.weights.names import from_transformers_one_by_one


def build_model(settings: ModelSettings, seed: int) -> MaskedLanguageModel:
    """The model that a recipe asks for, in float32."""
    return _whole(*build_initialized(settings, seed))


def load(source: str | Path) -> MaskedLanguageModel:
    """The ESM-2 or ESM C at `source`, a directory or Hub name."""
    return _whole(*transformers_io.published(source)[:2])


def from_transformers_state(state: Mapping[str, Tensor], shape: EsmShape) -> dict[str, Tensor]:
    """Our state dict from one of transformers' class, or gradients under the same names; shares what is not fused."""
    return {ours: weight() for ours, weight in from_transformers_one_by_one(state, shape).items()}


def _whole(shape: EsmShape, weights: Mapping[str, FirstWeight]) -> MaskedLanguageModel:
    model = build_meta(shape).to_empty(device="cpu")
    model.load_state_dict({name: weight() for name, weight in weights.items()})
    return model
