"""Adapters that cross the border: peft computes with ours what we compute, and we with peft's what peft computes."""

import json
import warnings
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import EsmForSequenceClassification, EsmModel

from finetune.adaptation.adapter import Adapter, LowRank
from finetune.adaptation.lora import adapter_of
from finetune.adaptation.peft_files import read_adapter, write_adapter
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
    write_adapter(adapter_of(made.parameters, made.plan), shape, tmp_path / "out", class_name)
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


@pytest.mark.parametrize("shape", [ESM2, ESMC], ids=["ESM-2", "ESM C"])
@pytest.mark.parametrize("settings", [{}, {"use_dora": True, "use_rslora": True, "rank": 5}], ids=["LoRA", "all"])
def test_out_and_in_again_is_the_same_adapter(tmp_path: Path, shape: EsmShape, settings: dict[str, Any]) -> None:
    made = trained(shape, **settings)
    gone = adapter_of(made.parameters, made.plan)
    name = "EsmForMaskedLM" if shape is ESM2 else "EsmcModel"
    write_adapter(gone, shape, tmp_path / "out", name, base="somewhere/base")
    back = read_adapter(tmp_path / "out", shape)
    assert back.plan == made.plan
    for path, low in gone.maps.items():
        assert torch.equal(low.a, back.maps[path].a), path
        assert torch.equal(low.b, back.maps[path].b), path
        assert low.magnitude is None or torch.equal(low.magnitude, back.maps[path].magnitude), path
    said = json.loads((tmp_path / "out/adapter_config.json").read_text())
    assert said["base_model_name_or_path"] == "somewhere/base"
    assert all(".0." in target or ".1." in target for target in said["target_modules"])


def saved_by_peft(folder: Path, shape: EsmShape, class_name: str, **config: Any) -> Any:
    """A model with an adapter as peft trains and saves one."""
    torch.manual_seed(11)
    model = get_peft_model(transformers_model(shape, class_name), LoraConfig(**config))
    for name, parameter in model.named_parameters():
        if "lora_" in name:
            parameter.data += 0.2 * torch.randn(parameter.shape)
    model.save_pretrained(str(folder))
    return model


PUBLISHED = [
    (ESM2, "EsmForMaskedLM", {"target_modules": ["query", "key", "value"], "r": 4}, [12, 12]),
    (
        ESM2,
        "EsmModel",
        {
            "target_modules": ["query", "value", "output.dense"],
            "exclude_modules": ["pooler.dense"],
            "rank_pattern": {"value": 2, r"layer.1.output.dense": 3},
            "alpha_pattern": {r".*1.attention.self.query": 5},
            "use_rslora": True,
        },
        [10, 8, 8, 10, 8, 3],
    ),
    (ESM2, "EsmForSequenceClassification", {"target_modules": ["query", "value"], "use_dora": True}, [16, 16]),
    (ESMC, "EsmcForMaskedLM", {"target_modules": ["q_proj", "k_proj", "gate_proj", "o_proj"]}, [16, 8, 8] * 2),
    (ESMC, "EsmcModel", {"target_modules": ["up_proj"], "layers_to_transform": [1], "layers_pattern": "layers"}, [8]),
]


@pytest.mark.parametrize(("shape", "class_name", "config", "ranks"), PUBLISHED, ids=lambda value: str(value)[:24])
def test_a_published_adapter_computes_here_what_it_computes_there(
    tmp_path: Path, shape: EsmShape, class_name: str, config: dict[str, Any], ranks: list[int]
) -> None:
    model = saved_by_peft(tmp_path / "theirs", shape, class_name, **config)
    read = read_adapter(tmp_path / "theirs", shape)
    assert [of_map.rank for of_map in read.plan.maps.values()] == ranks
    made = adapted(shape, AdaptationSettings(adapter="theirs"), weights(shape), start=read)
    assert relative(ours(made), theirs(model)) <= 1e-5
    assert relative(theirs(transformers_model(shape, class_name)), theirs(model)) > 1e-2

    write_adapter(adapter_of(made.parameters, made.plan), shape, tmp_path / "ours", class_name)
    before, after = (load_file(tmp_path / f"{side}/adapter_model.safetensors") for side in ("theirs", "ours"))
    if not config.get("use_dora"):  # with DoRA, a map of a fused one that had no adapter gets its rows' own lengths
        assert {name: tensor.shape for name, tensor in after.items()} == {n: t.shape for n, t in before.items()}
    again = PeftModel.from_pretrained(transformers_model(shape, class_name), str(tmp_path / "ours"))
    assert relative(theirs(again), theirs(model)) <= 1e-6


def test_a_classifiers_adapter_in_the_bare_encoder_is_silently_nothing_in_peft(tmp_path: Path) -> None:
    config = {"target_modules": ["query", "value"], "modules_to_save": ["classifier"]}
    model = saved_by_peft(tmp_path / "theirs", ESM2, "EsmForSequenceClassification", **config)
    with pytest.warns(UserWarning, match="missing adapter keys"):
        loaded = PeftModel.from_pretrained(transformers_model(ESM2, "EsmModel"), str(tmp_path / "theirs"))
    assert {float(p.norm()) for name, p in loaded.named_parameters() if "lora_B" in name} == {0.0}

    with pytest.raises(ValueError, match=r"modules_to_save is \['classifier'\].*adapter_without=\[\"classifier\"\]"):
        read_adapter(tmp_path / "theirs", ESM2)
    read = read_adapter(tmp_path / "theirs", ESM2, without=("classifier",))
    assert min(float(low.b.norm()) for low in read.maps.values()) > 0.1
    made = adapted(ESM2, AdaptationSettings(adapter="theirs"), weights(ESM2), start=read)
    assert relative(ours(made), theirs(model)) <= 1e-5
    write_adapter(read, ESM2, tmp_path / "ours", "EsmModel")
    bare = PeftModel.from_pretrained(transformers_model(ESM2, "EsmModel"), str(tmp_path / "ours"))
    assert relative(theirs(bare), theirs(model)) <= 1e-5


def changed(folder: Path, **config: Any) -> None:
    path = folder / "adapter_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | config))


def retold(folder: Path, change: Callable[[dict[str, Tensor]], object]) -> None:
    tensors = load_file(folder / "adapter_model.safetensors")
    change(tensors)
    save_file(tensors, folder / "adapter_model.safetensors", metadata={"format": "pt"})


QUERY = "base_model.model.esm.encoder.layer.1.attention.self.query"
REFUSED: list[tuple[str, Callable[[Path], object], str]] = [
    ("kind", lambda f: changed(f, peft_type="IA3"), "peft_type is 'IA3'"),
    ("biases", lambda f: changed(f, bias="lora_only"), "bias is 'lora_only', so biases of the base were trained"),
    ("lora_bias", lambda f: changed(f, lora_bias=True), "lora_bias = True, which has no place here"),
    ("pissa", lambda f: changed(f, init_lora_weights="pissa_niter_4"), "init_lora_weights is 'pissa_niter_4'"),
    ("replication", lambda f: changed(f, layer_replication=[[0, 2]]), r"layer_replication = \[\[0, 2\]\]"),
    ("future", lambda f: changed(f, invented_in_2031={"a": 1}), r"invented_in_2031 = \{'a': 1\}"),
    ("rank", lambda f: changed(f, r=4), r"query' is \(8, 48\); it must be \(4, 48\)"),
    ("targets", lambda f: changed(f, target_modules=["query", "key", "value"]), "2 weights are missing, .*self.key'"),
    ("dora", lambda f: changed(f, use_dora=True), "4 weights are missing, .*query.lora_magnitude_vector"),
    ("no A", lambda f: retold(f, lambda t: t.pop(f"{QUERY}.lora_A.weight")), "1 weights are missing, .*query.lora_A'"),
    ("no map", lambda f: retold(f, lambda t: [t.pop(f"{QUERY}.lora_{p}.weight") for p in "AB"]), "1 weights are miss"),
    ("more", lambda f: retold(f, lambda t: t.update(extra=torch.zeros(2))), "'extra' is no part of an adapter"),
    (
        "outside",
        lambda f: retold(f, lambda t: t.update({"base_model.model.esm.pooler.dense.lora_A.weight": torch.ones(8, 48)})),
        "1 adapted maps have no counterpart here, such as 'pooler.dense'",
    ),
    (
        "two prefixes",
        lambda f: retold(f, lambda t: t.update({f"{QUERY}.lora_A.weight".replace("esm.", ""): torch.ones(8, 48)})),
        r"names of its maps begin with \['', 'esm.'\]",
    ),
    ("no weights", lambda f: (f / "adapter_model.safetensors").rename(f / "adapter_model.bin"), "a pickle is not read"),
    ("cut", lambda f: (f / "adapter_model.safetensors").write_bytes(b"short"), "cannot be read"),
    ("no config", lambda f: (f / "adapter_config.json").unlink(), "adapter_config.json cannot be read"),
]


@pytest.mark.parametrize(("change", "said"), [pytest.param(c, s, id=i) for i, c, s in REFUSED])
def test_what_would_be_ignored_is_refused(tmp_path: Path, change: Callable[[Path], object], said: str) -> None:
    made = trained(ESM2)
    gone = adapter_of(made.parameters, made.plan)
    half = {path: low for path, low in gone.maps.items() if path.endswith("qkv")}
    for path, low in half.items():  # no adapter of the keys
        b = low.b.clone()
        b[48:96] = 0
        half[path] = LowRank(low.a, b, low.scale)
    write_adapter(Adapter(half), ESM2, tmp_path / "out", "EsmForMaskedLM")
    assert sorted(read_adapter(tmp_path / "out", ESM2).maps) == sorted(half)
    change(tmp_path / "out")
    with pytest.raises(ValueError, match=said):
        read_adapter(tmp_path / "out", ESM2)


def test_other_refusals(tmp_path: Path) -> None:
    made = trained(ESM2)
    gone = adapter_of(made.parameters, made.plan)
    with pytest.raises(ValueError, match=r"'EsmcModel'; the nearest is 'EsmModel'"):
        write_adapter(gone, ESM2, tmp_path / "out", "EsmcModel")
    write_adapter(gone, ESM2, tmp_path / "out", "EsmModel")
    with pytest.raises(ValueError, match="'classifier'; allowed are"):
        read_adapter(tmp_path / "out", ESM2, without=("classifier",))
    with pytest.raises(ValueError, match=r"names of its maps begin with \[''\]|no counterpart here"):
        read_adapter(tmp_path / "out", ESMC)
    with pytest.raises(ValueError, match=r"must be \(8, 64\)"):
        read_adapter(tmp_path / "out", EsmShape(layers=2, dim=64, heads=4))
