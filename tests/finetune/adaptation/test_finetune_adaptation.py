"""What is trained, from which first values, how fast; merged weights; what a checkpoint holds of it."""

import json
import math
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
import torch

from finetune.adaptation.adapt import adapt, initializers
from finetune.adaptation.adapter import AdapterPlan
from finetune.adaptation.groups import parameter_groups
from finetune.adaptation.lora import merged, plan_of
from finetune.adaptation.settings import AdaptationSettings
from pretrain.model.build import build_meta
from pretrain.model.initialization import initial_weights
from pretrain.model.presets import PRESETS, EsmShape
from support.checkpoint_run import restore, save
from support.inputs.flat_batches import document, pack, relative
from support.jobs.adapted import Adapted, WithHead, adapted
from zymogen.settings.json_file import validate
from zymogen.settings.toml_file import check
from zymogen.trainer.checkpoint.load import verify
from zymogen.trainer.checkpoint.restore import fill_frozen, read_whole
from zymogen.trainer.engine.named_state import TorchState, Weights
from zymogen.trainer.optimizer.kinds import build_optimizer
from zymogen.trainer.optimizer.settings import OptimizerSettings

SHAPE = EsmShape(layers=3, dim=48, heads=4)
MODERN = EsmShape(layers=2, dim=48, heads=3, architecture="modern", token_dropout=False)
BATCH = pack([[document(50, 0.1, 1), document(31, 0.0, 2)]], 96)
QKV = "encoder.layers.0.attention.qkv"


def weights(shape: EsmShape = SHAPE, seed: int = 0) -> Weights:
    return {n: w for n, w in initial_weights(build_meta(shape), seed).items() if n.startswith("encoder.")}


def made(shape: EsmShape = SHAPE, seed: int = 0, **settings: Any) -> Adapted:
    return adapted(shape, AdaptationSettings(**settings), weights(shape), seed)


REFUSED = [
    ({"kind": "adalora"}, "adaptation.kind is 'adalora', which is not offered: it takes ranks away"),
    ({"kind": "IA3"}, "adaptation.kind is 'IA3', which is not offered: it scales activations"),
    ({"kind": "dora"}, "set 'lora' and adaptation.use_dora=true"),
    ({"kind": "loro"}, "adaptation.kind is 'loro'; the nearest is 'lora'"),
    ({"kind": "loro", "rank": 4}, "adaptation.kind is 'loro'; the nearest is 'lora'"),
    ({"rank": 0}, "adaptation.rank is 0; it must be at least 1"),
    (
        {"kind": "full", "rank": 4},
        "adaptation.rank is 4; only adaptation.kind = 'lora' reads it, and adaptation.kind is 'full'",
    ),
    ({"layer_decay": 0.5}, "adaptation.layer_decay is 0.5; only adaptation.kind = 'full' reads it"),
    ({"cache_gb": 1.0}, "adaptation.cache_gb is 1.0; only adaptation.kind = 'frozen' reads it"),
    ({"targets": []}, "adaptation.targets is .*; name at least one map"),
]


@pytest.mark.parametrize(("section", "said"), REFUSED, ids=lambda value: str(value)[:30])
def test_a_recipe_that_asks_for_what_there_is_not_is_refused(section: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        check(AdaptationSettings, section, "recipe.toml")


def test_targets_are_names_inside_a_layer_or_full_paths() -> None:
    some = plan_of(AdaptationSettings(targets=("attention.out", "encoder.layers.2.feed_forward.down")), SHAPE)
    ends = [f"encoder.layers.{layer}.attention.out" for layer in range(3)]
    assert list(some.maps) == [*ends, "encoder.layers.2.feed_forward.down"]
    assert (some.rank, some.scale) == (8, 2.0)
    assert plan_of(AdaptationSettings(use_rslora=True, rank=16), SHAPE).scale == 4.0
    assert validate(AdapterPlan, json.dumps(asdict(some)).encode()) == some
    for targets, said in (
        (("attention.qvk",), "adaptation.targets is 'attention.qvk'; the nearest is 'attention.qkv'"),
        (("feed_forward.gate_up",), "allowed are 'attention.qkv', 'attention.out', 'feed_forward.up', "),
        (("encoder.layers.3.attention.out",), "the nearest is 'encoder.layers.[012].attention.out'"),
    ):
        with pytest.raises(ValueError, match=said):
            plan_of(AdaptationSettings(targets=targets), SHAPE)


@pytest.mark.parametrize("shape", [SHAPE, MODERN], ids=["ESM-2", "ESM C"])
def test_what_is_trained(shape: EsmShape) -> None:
    heads = {"head.weight", "head.bias"}
    trained = {
        kind: {n for n, p in made(shape, kind=kind).model.named_parameters() if p.requires_grad}
        for kind in ("frozen", "lora", "full")
    }
    assert trained["frozen"] == heads
    assert trained["full"] == heads | weights(shape).keys()
    assert trained["lora"] - heads == {
        f"encoder.layers.{layer}.attention.{name}.lora_{part}.default.weight"
        for layer in range(shape.layers)
        for name in ("qkv", "out")
        for part in "AB"
    }


def test_first_values() -> None:
    """A is uniform within peft's bound and a function of name and seed, B is 0, and nothing has changed yet."""
    one, other = made(use_dora=True).parameters, made(use_dora=True, seed=1).parameters
    base = made(kind="frozen")
    a = {name: value for name, value in one.items() if "lora_A" in name}
    together = torch.cat([value.flatten() for value in a.values()]) * math.sqrt(48)
    assert together.abs().max() <= 1
    assert float(together.std()) == pytest.approx(3**-0.5, rel=0.05)  # 2,304 numbers: 4 standard errors
    assert len({tuple(value.flatten()[:3].tolist()) for value in a.values()}) == len(a) == 6
    assert all(torch.equal(value, made(use_rslora=True).parameters[name]) for name, value in a.items())
    assert not any(torch.equal(value, other[name]) for name, value in a.items())
    assert not any(value.any() for name, value in one.items() if "lora_B" in name)
    norm = one[f"{QKV}.base_layer.weight"].double().square().sum(1).sqrt()
    assert torch.allclose(one[f"{QKV}.lora_magnitude_vector.default.weight"].double(), norm, rtol=1e-6)
    with torch.no_grad():
        assert relative(made(use_dora=True).model(BATCH), base.model(BATCH)) < 1e-6
        assert torch.equal(made().model(BATCH), base.model(BATCH))


def test_weights_of_another_shape_are_refused() -> None:
    with torch.device("meta"):
        model = WithHead(SHAPE)
    adapt(model, AdaptationSettings(kind="full"), None)
    with pytest.raises(ValueError, match=r"lack 12 of the encoder's, such as 'encoder.layers.2.attention_norm.weight'"):
        initializers(model, weights(replace(SHAPE, layers=2)), 0)


@pytest.mark.parametrize("shape", [SHAPE, MODERN], ids=["ESM-2", "ESM C"])
@pytest.mark.parametrize("use_dora", [False, True], ids=["LoRA", "DoRA"])
def test_merged_weights_compute_the_same(shape: EsmShape, use_dora: bool) -> None:
    up = "feed_forward.gate_up" if shape.is_modern else "feed_forward.up"
    one = made(shape, use_dora=use_dora, targets=["attention.qkv", up, "feed_forward.down"])
    one.train_adapters()
    before = {name: value.clone() for name, value in one.parameters.items()}
    plain = WithHead(shape)
    assert one.plan is not None
    plain.load_state_dict(merged(one.parameters, one.plan))
    with torch.no_grad():
        assert relative(plain(BATCH), one.model(BATCH)) < 1e-5
        assert relative(made(shape, kind="frozen").model(BATCH), one.model(BATCH)) > 0.05
    assert all(torch.equal(value, one.parameters[name]) for name, value in before.items())
    a, b = (before[f"{QKV}.lora_{part}.default.weight"].double() for part in "AB")
    expected = before[f"{QKV}.base_layer.weight"].double() + 2 * b @ a  # alpha 16 over rank 8
    if use_dora:
        magnitude = before[f"{QKV}.lora_magnitude_vector.default.weight"].double()
        expected *= (magnitude / expected.square().sum(1).sqrt())[:, None]
    assert relative(plain.get_parameter(f"{QKV}.weight").double(), expected) < 1e-6


ADAMW, MUON = OptimizerSettings(weight_decay=0.1), OptimizerSettings(name="muon", weight_decay=0.1)


def groups(optimizer: OptimizerSettings, **settings: Any) -> dict[str, tuple[set[str], dict[str, Any]]]:
    """Name of a group -> names of its parameters, and everything else that it says."""
    chosen = AdaptationSettings(**settings)
    model = adapted(SHAPE, chosen, weights()).model
    names = {parameter: name for name, parameter in model.named_parameters()}
    found = parameter_groups(model, chosen, optimizer)
    members = [names[parameter] for group in found for parameter in group["params"]]
    assert sorted(members) == sorted(name for name, p in model.named_parameters() if p.requires_grad)
    build_optimizer(found, optimizer)  # takes them
    rest = ({key: value for key, value in group.items() if key not in ("name", "params")} for group in found)
    return {g["name"]: ({names[p] for p in g["params"]}, other) for g, other in zip(found, rest, strict=True)}


def test_heads_learn_faster_and_only_matrices_decay() -> None:
    frozen = groups(ADAMW, kind="frozen")
    assert frozen == {
        "head/decay": ({"head.weight"}, {"weight_decay": 0.1, "lr_scale": 10.0}),
        "head/no_decay": ({"head.bias"}, {"weight_decay": 0.0, "lr_scale": 10.0}),
    }
    lora = groups(ADAMW, use_dora=True, head_lr=4.0)
    assert {name: rest for name, (_, rest) in lora.items()} == {
        "adapter/decay": {"weight_decay": 0.1, "lr_scale": 1.0},
        "adapter/no_decay": {"weight_decay": 0.0, "lr_scale": 1.0},
        "head/decay": {"weight_decay": 0.1, "lr_scale": 4.0},
        "head/no_decay": {"weight_decay": 0.0, "lr_scale": 4.0},
    }
    assert all("magnitude" in name for name in lora["adapter/no_decay"][0])


@pytest.mark.parametrize("optimizer", [ADAMW, MUON], ids=["AdamW", "Muon"])
def test_lower_layers_learn_slower(optimizer: OptimizerSettings) -> None:
    found = groups(optimizer, kind="full", layer_decay=0.5)
    rates = {name.partition("/")[0]: rest["lr_scale"] for name, (_, rest) in found.items()}
    layers = {"layer_2": 0.5, "layer_1": 0.25, "layer_0": 0.125}
    assert rates == {"head": 10.0, "final_norm": 1.0, **layers, "embedding": 0.0625}
    assert found["layer_1/no_decay"][0] >= {f"encoder.layers.1.attention.{name}.bias" for name in ("qkv", "out")}
    if optimizer is MUON:
        assert found["layer_1/muon_3"] == (
            {"encoder.layers.1.attention.qkv.weight"},
            {"weight_decay": 0.1, "lr_scale": 0.25, "blocks": 3},
        )
        assert all("blocks" not in rest for name, (_, rest) in found.items() if not name.startswith("layer_"))


@pytest.mark.parametrize("kind", ["lora", "frozen"])
def test_muon_has_nothing_to_move_in_adapters_and_heads(kind: str) -> None:
    with pytest.raises(ValueError, match=f"adaptation.kind = '{kind}' none of them is trained.*set optimizer.name"):
        groups(MUON, kind=kind)


def trained_state(one: Adapted, steps: int = 2) -> TorchState:
    optimizer = build_optimizer(parameter_groups(one.model, AdaptationSettings(), ADAMW), ADAMW)
    for group in optimizer.param_groups:
        group["lr"] = 1e-3 * group["lr_scale"]
    for _ in range(steps):
        (one.model(BATCH)[:81].square().sum()).backward()
        optimizer.step()
        optimizer.zero_grad()
    return TorchState(one.model, optimizer)


PRINTS = {"identity": "a", "schedule": "b", "corpus": "c", "split": "d"}


def alone(value: Any) -> list[Any]:
    return [value]


def test_a_checkpoint_holds_what_is_trained_and_other_base_weights_are_refused(tmp_path: Path) -> None:
    shape = PRESETS["esm2_8m"]
    one = adapted(shape, AdaptationSettings(), weights(shape))
    state = trained_state(one)
    found = fill_frozen(state, one.first, alone)
    assert found is not None
    checkpoint = verify(save(tmp_path, state, 2, fingerprints={**PRINTS, "frozen": found}))
    size = sum(path.stat().st_size for path in checkpoint.path.rglob("*") if path.is_file())
    numbers = sum(p.numel() for p in one.model.parameters() if p.requires_grad)
    assert abs(size - 12 * numbers) <= 0.05 * 12 * numbers + 64 * 1024  # weight and two moments, 4 bytes each
    assert 12 * sum(p.numel() for p in one.model.parameters()) > 20 * size

    b = {name: value for name, value in one.parameters.items() if "lora_B" in name}
    assert all(value.any() for value in b.values())
    whole = read_whole(checkpoint, one.parameters, one.first)
    assert all(torch.equal(whole[name], value) for name, value in one.parameters.items())

    other = adapted(shape, AdaptationSettings(), weights(shape, seed=1))
    filled = fill_frozen(TorchState(other.model, trained_state(other)._optimizer), other.first, alone)
    with pytest.raises(ValueError, match=f"content hash was {found}, and is now {filled}"):
        restore(checkpoint, trained_state(other), filled)
