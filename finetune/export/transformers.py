"""A fine-tuned model as transformers' own classes for classification.

In: an objective, and all parameters with adapters merged. Out: a folder with config.json, model.safetensors, tokenizer
and README.md with its picture. Kept: that folder. z-scores are undone in the last map, so that numbers come out in the
task's scale.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import (
    EsmcForSequenceClassification,
    EsmcForTokenClassification,
    EsmForSequenceClassification,
    EsmForTokenClassification,
)
from transformers.utils import logging

from finetune.bundle.card import CARD, export_card, write_pictures
from finetune.bundle.manifest import BundleManifest
from finetune.tasks.task import Task
from pretrain.model.build import build_meta
from pretrain.model.weights import io as transformers_io

_CLASSES: dict[tuple[bool, str], Any] = {
    (False, "sequence"): EsmForSequenceClassification,
    (False, "residue"): EsmForTokenClassification,
    (True, "sequence"): EsmcForSequenceClassification,
    (True, "residue"): EsmcForTokenClassification,
}


def save(folder: Path, manifest: BundleManifest, objective: Task, parameters: Mapping[str, Tensor]) -> None:
    """Write the model to a folder that exists.

    Args:
        folder: an empty one.
        manifest: of the bundle.
        objective: the only one.
        parameters: all of the model's, without adapters.
    """
    logging.disable_progress_bar()
    shape, level = manifest.encoder, objective.settings.level
    model = build_meta(shape)
    inner = {
        name: parameters[name] if name.startswith("encoder.") else torch.zeros(parameter.shape)
        for name, parameter in model.named_parameters()
    }
    model.load_state_dict(inner, assign=True)
    transformers_io.save_tokenizer(shape, folder, manifest.reading.crop_tokens)
    masked = transformers_io.to_transformers(model)
    config = masked.config
    config.architectures = None
    config.problem_type = objective.settings.kind.transformers_problem  # type: ignore[assignment]
    names = objective.classes if objective.settings.kind.predicts_each_class else objective.outputs
    config.id2label = dict(enumerate(names))
    config.label2id = {name: number for number, name in enumerate(names)}
    config.num_labels = len(names)
    theirs = _CLASSES[shape.is_modern, level](config)
    prefix = theirs.base_model_prefix
    getattr(theirs, prefix).load_state_dict(getattr(masked, prefix).state_dict(), strict=True)
    _fill_head(theirs, objective, parameters)
    transformers_io.save_pretrained(theirs, folder, theirs.state_dict(), transformers_io.LARGEST_FILE)
    card, pictures = folder / CARD, write_pictures(manifest, folder)
    card.write_text(export_card(manifest, objective, type(theirs).__name__, pictures), encoding="utf-8")
    for path in folder.iterdir():
        path.chmod(card.stat().st_mode & 0o777)


@torch.no_grad()
def _fill_head(theirs: Any, objective: Task, parameters: Mapping[str, Tensor]) -> None:
    (prefix,) = {name.partition(".map.")[0] for name in parameters if name.startswith("heads.")}
    last: nn.Linear
    if objective.settings.level == "sequence":
        theirs.classifier.dense.weight.copy_(parameters[f"{prefix}.map.dense.weight"])
        theirs.classifier.dense.bias.copy_(parameters[f"{prefix}.map.dense.bias"])
        last, name = theirs.classifier.out_proj, f"{prefix}.map.out_proj"
    else:
        last, name = getattr(theirs, "classifier", None) or theirs.score, f"{prefix}.map"
    weight, bias = parameters[f"{name}.weight"].double(), parameters[f"{name}.bias"].double()
    if objective.settings.is_number:
        std, mean = torch.from_numpy(objective.std), torch.from_numpy(objective.mean)
        weight, bias = weight * std[:, None], bias * std + mean
    last.weight.copy_(weight)
    last.bias.copy_(bias)
