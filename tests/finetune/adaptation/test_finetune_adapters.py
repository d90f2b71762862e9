"""Adapters that cross the border: peft computes with ours what we compute."""

import json
import warnings
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import PeftModel
from torch import Tensor
from transformers import EsmForSequenceClassification, EsmModel

from finetune.adaptation.peft_files import write_adapter
from finetune.adaptation.settings import AdaptationSettings
from pretrain.model.masked_language_model import MaskedLanguageModel
from pretrain.model.presets import EsmShape
from pretrain.model.weights import io as transformers_io
from support.inputs.flat_batches import document, pack, perturb, relative
from support.jobs.adapted import Adapted, adapted

ESM2 = EsmShape(layers=2, dim=48, heads=4)
ESMC = EsmShape(layers=2, dim=48, heads=3, architecture="modern", token_dropout=False)
ALL = {
    ESM2: ("attention.qkv", "attention.out", "feed_forward.up", "feed_forward.down"),
    ESMC: ("attention.qkv", "attention.out", "feed_forward.gate_up", "feed_forward.down"),
}
IDS = document(60, 0.0, 5)[0]
BATCH = pack([[(IDS, [-100] * len(IDS))]], 64)


@cache
def base(shape: EsmShape) -> MaskedLanguageModel:
    model = MaskedLanguageModel(shape)
    perturb(model)
    return model


def weights(shape: EsmShape) -> dict[str, Callable[[], Tensor]]:
    named = base(shape).named_parameters()
    return {name: partial(Tensor.clone, p.detach()) for name, p in named if name.startswith("encoder.")}


def trained(shape: EsmShape, **settings: Any) -> Adapted:
    made = adapted(shape, AdaptationSettings(targets=ALL[shape], **settings), weights(shape))
    made.train_adapters()
    return made


@torch.no_grad()
def ours(made: Adapted) -> Tensor:
    return made.model.encoder(BATCH)[: len(IDS)]


@torch.no_grad()
def theirs(model: Any) -> Tensor:
    """Hidden states of the encoder of transformers' model, or of the one inside of peft's."""
    whole = model.base_model.model if isinstance(model, PeftModel) else model
    encoder = getattr(whole, "esm", getattr(whole, "esmc", whole))
    return encoder.eval()(input_ids=torch.tensor([IDS])).last_hidden_state[0]


def transformers_model(shape: EsmShape, class_name: str) -> Any:
    whole = transformers_io.to_transformers(base(shape))
    if class_name in ("EsmForMaskedLM", "EsmcForMaskedLM"):
        return whole
    if class_name == "EsmcModel":
        return whole.esmc
    made = {"EsmModel": EsmModel, "EsmForSequenceClassification": EsmForSequenceClassification}[class_name](
        whole.config
    )
    inner = made if class_name == "EsmModel" else made.esm
    inner.load_state_dict(whole.esm.state_dict(), strict=False)
    return made.eval()


CASES = [
    (ESM2, "EsmModel", {}),
    (ESM2, "EsmForMaskedLM", {"use_rslora": True, "rank": 3}),
    (ESM2, "EsmForSequenceClassification", {"use_dora": True}),
    (ESMC, "EsmcModel", {"use_dora": True, "use_rslora": True}),
    (ESMC, "EsmcForMaskedLM", {"alpha": 5.0}),
]


@pytest.mark.parametrize(("shape", "class_name", "settings"), CASES, ids=lambda value: str(value)[:24])
def test_peft_computes_with_ours_what_we_compute(
    tmp_path: Path, shape: EsmShape, class_name: str, settings: dict[str, Any]
) -> None:
    made = trained(shape, **settings)
    assert made.plan is not None
    write_adapter(made.parameters, made.plan, shape, tmp_path / "out", class_name)
    model = transformers_model(shape, class_name)
    before = relative(ours(made), theirs(model))
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # peft only warns of what it cannot place
        warnings.simplefilter("ignore", FutureWarning)  # of transformers, that peft uses an old name of it
        loaded = PeftModel.from_pretrained(model, str(tmp_path / "out"))
    norms = {name: float(p.norm()) for name, p in loaded.named_parameters() if "lora_B" in name}
    assert len(norms) == 2 * (6 if shape is ESM2 else 7)
    assert min(norms.values()) > 0.1
    assert relative(theirs(loaded), ours(made)) <= 1e-5
    assert before > 1e-2


def test_the_folder_names_its_base_and_the_class_is_one_of_the_architecture(tmp_path: Path) -> None:
    made = trained(ESM2)
    assert made.plan is not None
    write_adapter(made.parameters, made.plan, ESM2, tmp_path / "out", "EsmForMaskedLM", base="somewhere/base")
    said = json.loads((tmp_path / "out/adapter_config.json").read_text())
    assert said["base_model_name_or_path"] == "somewhere/base"
    assert all(".0." in target or ".1." in target for target in said["target_modules"])
    with pytest.raises(ValueError, match=r"'EsmcModel'; the nearest is 'EsmModel'"):
        write_adapter(made.parameters, made.plan, ESM2, tmp_path / "other", "EsmcModel")
