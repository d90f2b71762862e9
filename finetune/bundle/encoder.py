"""The encoder of a model of any kind: a bundle's, with its adapters merged, or a pretrained one.

In: a bundle, or a run that has one; else what `pretrain.trained_model` opens. Out: a `TrainedModel`. Kept: nothing.
"""

from functools import partial
from pathlib import Path

import torch

from finetune.bundle.base import merged_parameters
from finetune.bundle.folder import Bundle, open_folder
from finetune.bundle.locate import bundles_in
from pretrain.trained_model import ENCODER, TrainedModel, open_trained_model


def encoder_at(model: str | Path, base: str | None = None) -> TrainedModel:
    """The encoder at `model`.

    Args:
        model: a bundle or a fine-tuning run; a pretraining run, an export, a folder of transformers or a Hub name.
        base: where the weights are that a bundle was trained on; None for where they were then.

    Raises:
        ValueError: there is none, or several; `base` is given and nothing needs it.
    """
    path = Path(model)
    found = bundles_in(path)
    if len(found) > 1:
        raise ValueError(f"{path} has {len(found)} models; name one of them, such as {found[0]}")
    if found:
        return _of_bundle(open_folder(found[0]), base)
    if base is not None:
        raise ValueError(f"--base {base}: {model} is no bundle, so it has all of its weights; leave --base out")
    return open_trained_model(model, ENCODER)


def _of_bundle(bundle: Bundle, base: str | None) -> TrainedModel:
    parameters = merged_parameters(bundle, base)
    weights = {name: partial(torch.clone, each) for name, each in parameters.items() if name.startswith(ENCODER)}
    folder = bundle.folder.resolve()
    name = folder.parent.name if folder.name == "bundle" else folder.name
    return TrainedModel(bundle.manifest.encoder, weights, str(bundle.folder), name)
