"""Adapters as folders of peft, for transformers' own classes.

In: the parameters of a model with adapters. Out: a folder with adapter_config.json and adapter_model.safetensors.
Kept: that folder.

The names differ as those of weights do (`pretrain.model.weights.names`), and a fused map of ours is several maps of
theirs. An adapter of a fused map is exactly one of each of them, with the same A and a part of the rows of B.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors.torch import save_file
from torch import Tensor

from finetune.adaptation.adapter import AdapterPlan
from finetune.adaptation.lora import adapter_of, linear_maps
from pretrain.model.presets import Architecture, EsmShape
from pretrain.model.weights.names import INNER, LAYER
from zymogen.files.durable import new_dir
from zymogen.settings.section import require_known

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"

CLASSES: dict[Architecture, dict[str, str]] = {
    "esm2": {
        "EsmModel": "",
        **dict.fromkeys(("EsmForMaskedLM", "EsmForSequenceClassification", "EsmForTokenClassification"), "esm."),
    },
    "modern": {
        "EsmcModel": "",
        **dict.fromkeys(("EsmcForMaskedLM", "EsmcForSequenceClassification", "EsmcForTokenClassification"), "esmc."),
    },
}
"""transformers' classes of an architecture -> what the names of the encoder's modules begin with in them."""

_PEFT = "base_model.model."
_WEIGHTS_OF_A_MAP = "lora_A.weight", "lora_B.weight", "lora_magnitude_vector"


def write_adapter(
    parameters: Mapping[str, Tensor],
    plan: AdapterPlan,
    shape: EsmShape,
    folder: Path,
    class_name: str,
    base: str | None = None,
) -> None:
    """Write the adapter of a model for one of transformers' classes, with full module paths as targets.

    Args:
        parameters: of a model of ours, by name, float32 on the host.
        plan: of its adapters.
        shape: of its encoder.
        folder: made by this; nothing is there.
        class_name: one of `CLASSES`: the class that peft will put the adapter into.
        base: directory or Hub name of the model that it was trained on, for its config.

    Raises:
        ValueError: the class is none of this architecture, or the folder cannot be written.
    """
    from peft import LoraConfig  # takes seconds to import

    classes = CLASSES[shape.architecture]
    require_known("class of the exported adapter", class_name, classes)
    adapter, theirs, prefix = adapter_of(parameters, plan), _theirs(shape), classes[class_name]
    tensors: dict[str, Tensor] = {}
    for path, whole in adapter.items():
        names = theirs[path]  # of a fused map several, with the same A and a part of the rows of the others
        parts = zip(*(each.chunk(len(names)) for each in (whole.b, whole.magnitude) if each is not None), strict=True)
        for name, rows in zip(names, parts, strict=True):
            for key, part in zip(_WEIGHTS_OF_A_MAP, (whole.a, *rows), strict=False):
                tensors[f"{_PEFT}{prefix}{name}.{key}"] = part.contiguous().clone()
    config = LoraConfig(
        r=plan.rank,
        lora_alpha=plan.alpha,  # type: ignore[arg-type]
        target_modules=sorted(prefix + name for path in adapter for name in theirs[path]),
        use_rslora=plan.use_rslora,
        use_dora=plan.use_dora,
        base_model_name_or_path=base,
        inference_mode=True,
    )
    fields: dict[str, Any] = config.to_dict()
    said = {key: sorted(value) if isinstance(value, set) else value for key, value in fields.items()}
    with new_dir(folder) as building:
        (building / CONFIG).write_text(json.dumps(said, indent=2, sort_keys=True) + "\n", encoding="utf-8")
        save_file(tensors, building / WEIGHTS, metadata={"format": "pt"})


def _theirs(shape: EsmShape) -> dict[str, tuple[str, ...]]:
    """Path of each linear map of ours -> paths of theirs inside the bare encoder."""
    inside = LAYER[shape.architecture].partition(".")[2]
    found = {}
    for path in linear_maps(shape):
        layer, _, name = path.removeprefix("encoder.layers.").partition(".")
        weights = INNER[shape.architecture][f"{name}.weight"]
        found[path] = tuple(f"{inside}.{layer}.{weight.removesuffix('.weight')}" for weight in weights)
    return found
